"""The planner: a demand on sliders, and what the autoscaler makes of it as boxes in bins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from helpers.errors import CourseError
from helpers.model.demand import STRATEGIES, Demand, Gang, demands
from helpers.model.planner import V1, V2, NodeGroup, Plan, plan
from helpers.model.planner.source import cluster_in, offered
from helpers.model.raycluster import Cluster, Group
from helpers.text import as_html, columns, html_table
from helpers.widgets import as_bundle, bins, live_region

if TYPE_CHECKING:
    from ipywidgets import VBox

TASKS = "tasks"  # in place of a strategy: each finds its place by itself
MOST = 200  # on a slider: more shows nothing new, and takes longer than a slider may


def planner(
    source: str | Mapping[str, Any] | Sequence[NodeGroup],
    demand: str | Demand | Iterable[str | Demand] = (),
    **there: Any,
) -> Planner:
    """Ask for any demand by sliders; the notebook shows what the autoscaler makes of it.

    Args:
        source: a manifest with one RayCluster, RayJob or RayService, as YAML text or a dict; or groups.
        demand: what the sliders stand at first, a slider for each kind; left away, the kinds that the groups suggest.
        there: what `helpers.model.planner.plan` takes beside them.

    Raises:
        CourseError: the manifest cannot be read or the API server refuses it, or a demand is none.
    """
    cluster = cluster_in(source)
    asked = demands(demand) or suggested(cluster)
    version = there.pop("version", V2)
    there = {name: tuple(value) if isinstance(value, Iterator) else value for name, value in there.items()}
    tops = [max(one.count, top(cluster, one)) for one in asked]
    return Planner(cluster.document, asked, tops, [one.count for one in asked], there, version)


def suggested(cluster: Cluster) -> list[Demand]:
    """The demands that show most of a cluster: 1 of each thing that its groups have, and all CPUs of a worker.

    The first is asked for once, the others not yet. Memory is left out.
    """
    has = [offered(group) for group in cluster.groups]
    names = dict.fromkeys(["CPU", "GPU", *(name for one in has for name in one)])
    ones = [{name: 1} for name in names if name != "memory" and any(one.get(name, 0) >= 1 for one in has)]
    whole = sorted({amount for group in cluster.workers if (amount := offered(group).get("CPU", 0)) > 1})
    shapes = [*ones[:1], *({"CPU": amount} for amount in whole), *ones[1:]] or [{"CPU": 1}]
    return [Demand(shape, int(number == 0)) for number, shape in enumerate(shapes)]


def top(cluster: Cluster, one: Demand) -> int:
    """How many a slider goes up to: a quarter more than there can be room for, as far as `MOST`."""
    room = sum(_fitting(group, one) * group.max_pods for group in cluster.groups)
    return int(min(MOST, room + max(2, room // 4)))


def _fitting(group: Group, one: Demand) -> int:
    has = offered(group)
    return int(min((has.get(name, 0) // amount for name, amount in one.resources.items() if amount), default=1))


@dataclass
class Planner:
    """A demand that is changed, and its plan. `planner` makes it; the notebook shows it with sliders.

    Attributes:
        source: the document with the cluster.
        shapes: the kinds of demand.
        tops: how many of each may be asked for.
        counts: how many of each are.
        there: what else goes into the plan.
        version: of the autoscaler, "v1" or "v2".
        way: how it is asked for: `TASKS`, or the strategy of one placement group of all.
    """

    source: Mapping[str, Any]
    shapes: list[Demand]
    tops: list[int]
    counts: list[int]
    there: Mapping[str, Any] = field(default_factory=dict)
    version: str = V2
    way: str = TASKS

    @property
    def demand(self) -> list[Demand]:
        """What is asked for now."""
        return [shape.times(count) for shape, count in zip(self.shapes, self.counts, strict=True) if count]

    @property
    def gangs(self) -> list[Gang]:
        """The demand as one placement group, if it is asked for as one."""
        return [Gang(self.way, tuple(self.demand))] if self.demand and self.way != TASKS else []

    def plan(self) -> Plan:
        """What the autoscaler makes of it.

        Raises:
            CourseError: as `helpers.model.planner.plan`.
        """
        there = {**self.there, "placement_groups": [*self.there.get("placement_groups", ()), *self.gangs]}
        return plan(self.source, self.demand if self.way == TASKS else [], version=self.version, **there)

    @property
    def twin(self) -> str:
        """How to have the same plan without sliders."""
        asked = ", ".join(repr(one) if one.labels else repr(str(one)) for one in self.demand)
        if self.gangs:
            bundles = "".join(f"{one!r}, " if one.labels else f"parse({str(one)!r}), " for one in self.demand)
            asked = f"placement_groups=[Gang({self.way!r}, ({bundles.strip()}))]"
        else:
            asked = f"[{asked}]"
        there = "".join(f", {name}=…" for name in self.there)
        source = " (from helpers.model.demand import Gang, parse)" if self.gangs else ""
        return f"Or in a cell: `lab.plan(manifest, {asked}{there}, version={self.version!r})`{source}"

    def __str__(self) -> str:
        try:
            made = self.plan()
        except CourseError as error:
            return f"✘ {error}"
        rows = bins.table(made)
        boxes = columns([bins.HEADERS, *rows]) if rows else ""
        return "\n".join(filter(None, [bins.summary(made), boxes, str(made), self.twin]))

    __repr__ = __str__

    @cached_property
    def widget(self) -> VBox:
        """The sliders, and below them the picture, what it says, and its table if that is wanted."""
        import ipywidgets

        style, layout = {"description_width": "14em"}, ipywidgets.Layout(width="40em")
        names = bins.letters(Plan(self.version, {}), self.shapes)
        sliders = [
            ipywidgets.IntSlider(
                count, min=0, max=top, description=f"{names[one.shape]}  {bins.kind(one)}", style=style, layout=layout
            )
            for one, count, top in zip(self.shapes, self.counts, self.tops, strict=True)
        ]
        ways = [("tasks, each for itself", TASKS), *((f"one placement group, {one}", one) for one in STRATEGIES)]
        way = ipywidgets.Dropdown(options=ways, value=self.way, description="Asked for as", style=style, layout=layout)
        versions = list(dict.fromkeys([V2, V1, self.version]))  # of one that there is not, the plan says so
        version = ipywidgets.Dropdown(
            options=versions, value=self.version, description="Autoscaler", style=style, layout=layout
        )
        as_table = ipywidgets.Checkbox(description="The same as a table", indent=False)
        picture, said, twin, rows = (ipywidgets.HTML() for _ in range(4))

        def show(_: Any = None) -> None:
            self.counts, self.way, self.version = [slider.value for slider in sliders], way.value, version.value
            twin.value = as_html(self.twin)
            try:
                made = self.plan()
            except CourseError as error:
                picture.value, said.value, rows.value = "", live_region(f"✘ {error}"), ""
                return
            picture.value = bins.picture(made, self.shapes)
            said.value = live_region("\n".join([bins.summary(made), *(f"{word}: {row}" for word, row in made.rows())]))
            rows.value = html_table("Ray nodes", bins.HEADERS, bins.table(made)) if as_table.value else ""

        for control in (*sliders, way, version, as_table):
            control.observe(show, "value")
        show()
        return ipywidgets.VBox([*sliders, way, version, picture, said, as_table, rows, twin])

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return as_bundle(self.widget, str(self))
