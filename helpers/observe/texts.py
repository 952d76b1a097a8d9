"""What `ray status`, `ray memory`, `ray list actors` and `kubectl top` print, read back.

Text of people may be cut, wrapped or of an older Ray: what cannot be read is left out, and nothing here raises.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import yaml

from helpers.model import quantity

Bundle = Mapping[str, float]
Selector = tuple[str, bool, list[str]]
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_USAGE = re.compile(r"([\d.e+-]+)([KMGT]iB|B)?\s*/\s*([\d.e+-]+)\s*([KMGT]iB|B)?\s+(\S+)")
_COUNT = re.compile(r"(\d+) (\S.*)")
_DEMAND = re.compile(r"(\{.*?\}): (\d+)\+? pending")
_GANG = re.compile(r"(\{.*\}.*?) \((\w+)\): (\d+)\+? pending placement groups?")
_REQUEST = re.compile(r"(\{.*?\}): (\d+) from request_resources")
_BUNDLE = re.compile(r"(\{.*?\}) \* (\d+)")
_NODE = re.compile(r"Node: (\S+)(?: \((.*)\))?")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
# heads of the parts of `ray status`: those of Ray 2.60 (ClusterStatusFormatter in autoscaler/v2/utils.py and
# format_info_string in autoscaler/_private/util.py), and those of older ones
_HEADS = {
    "Active:": "active", "Healthy:": "active", "Idle:": "idle", "Pending:": "pending",
    "Recent failures:": "failures", "Total Usage:": "usage", "Usage:": "usage", "Activity:": "activity",
    "From request_resources:": "requests", "Constraints:": "requests",
    "Pending Demands:": "demands", "Total Demands:": "demands", "Demands:": "demands",
}  # fmt: skip


def moment(text: str) -> datetime | None:
    """The first date and time in a text, as UTC: what the clock of a container shows."""
    found = _STAMP.search(text)
    if not found:
        return None
    try:
        at = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    except ValueError:
        return None
    return at.replace(microsecond=int((found[3] or "0").ljust(6, "0")))


# ---- ray status ----------------------------------------------------------------------------------------------------


@dataclass
class RayNode:
    """One Ray node of `ray status -v`.

    Attributes:
        name: of its Pod; an IP address in texts of the autoscaler v1.
        group: empty if it is not said.
        id: of Ray; empty if it is not said.
        idle_ms: 0 if it is not idle, or that is not said.
        usage: used and total by resource; memory in bytes.
        activity: why it is not idle, in Ray's words.
    """

    name: str
    group: str = ""
    id: str = ""
    idle_ms: float = 0
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    activity: list[str] = field(default_factory=list)

    def used(self, resource: str) -> float:
        return self.usage.get(resource, (0, 0))[0]

    @property
    def is_free(self) -> bool:
        """Whether no task holds anything of it; what lies in its object store aside."""
        return not any(used for name, (used, _) in self.usage.items() if name != "object_store_memory")


@dataclass
class RayStatus:
    """What `ray status` printed; the last one, if there are several in the text.

    Attributes:
        at: the moment in its header.
        iteration_s: seconds that the autoscaler's round took (with -v); None if it is not said.
        waited_s: seconds of it for the GCS and for Kubernetes (with -v).
        active, idle: Ray nodes by group. Texts before 2.9 have no "Idle" (`has_idle`).
        pending: Ray nodes that are there and have not joined: name, group, what it says of them.
        launching: Ray nodes asked for and not there, by group.
        failures: the lines of "Recent failures".
        usage: of the whole cluster: used and total by resource; memory in bytes.
        requests: the standing request of `request_resources()`: bundle and count.
        demands: what tasks and actors wait for: bundle and count.
        gangs: what placement groups wait for: bundles with counts, strategy, count.
        nodes: with -v, each Ray node.
    """

    at: datetime | None = None
    iteration_s: float | None = None
    waited_s: float = 0
    active: dict[str, int] = field(default_factory=dict)
    idle: dict[str, int] = field(default_factory=dict)
    has_idle: bool = False
    pending: list[tuple[str, str, str]] = field(default_factory=list)
    launching: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    requests: list[tuple[Bundle, int]] = field(default_factory=list)
    demands: list[tuple[Bundle, int]] = field(default_factory=list)
    gangs: list[tuple[list[tuple[Bundle, int]], str, int]] = field(default_factory=list)
    nodes: list[RayNode] = field(default_factory=list)

    @property
    def has_demand(self) -> bool:
        return bool(self.demands or self.gangs)

    def joined(self, group: str) -> int:
        """Ray nodes of a group that are in the Ray cluster."""
        return self.active.get(group, 0) + self.idle.get(group, 0)


def ray_status(text: str) -> RayStatus | None:
    """Read the output of `ray status` or `ray status -v`; None if it is none, such as an error."""
    start = text.rfind("======== Autoscaler status")
    lines = text[max(start, 0) :].splitlines()
    if not any(line.strip() in ("Node status", "Resources", "Pending:") for line in lines):
        return None
    status, part, node = RayStatus(at=moment(text[start:]) if start >= 0 else None), "", None
    for line in lines:
        bare = line.strip()
        if seconds := re.match(
            r"(GCS request|Node Provider non_terminated_nodes|Autoscaler iteration) time: (\S+?)s$", bare
        ):
            _add_time(status, seconds[1], seconds[2])
        elif found := _NODE.fullmatch(bare):
            node, part = RayNode(found[1], found[2] or ""), "node"
            status.nodes.append(node)
        elif bare in _HEADS:
            part = _HEADS[bare]
            status.has_idle |= part == "idle"
        elif not bare or set(bare) == {"-"} or bare in ("Node status", "Resources"):
            part = part if node else ("" if bare else part)
        elif node is not None:
            _read_node(node, part, bare)
        else:
            _read_line(status, part, bare)
    return status


def _add_time(status: RayStatus, what: str, seconds: str) -> None:
    number = _number(seconds)
    if number is None:
        return
    if what == "Autoscaler iteration":
        status.iteration_s = number
    else:
        status.waited_s += number


def _read_node(node: RayNode, part: str, line: str) -> None:
    if found := re.match(r"Id: (\S+)", line):
        node.id = found[1]
    elif found := re.match(r"Idle: ([\d.]+) ms", line):
        node.idle_ms = _number(found[1]) or 0
    elif part == "activity":
        if line != "(no activity)":
            node.activity.append(line)
    elif used := _usage(line):
        node.usage[used[0]] = used[1:]


def _read_line(status: RayStatus, part: str, line: str) -> None:
    if line.startswith("(no ") or line == "(none)":
        return
    if part in ("active", "idle") and (found := _COUNT.fullmatch(line)):
        counts = status.active if part == "active" else status.idle
        counts[found[2]] = counts.get(found[2], 0) + int(found[1])
    elif part == "pending" and (found := re.fullmatch(r"(.+), (\d+) launching", line)):
        status.launching[found[1]] = status.launching.get(found[1], 0) + int(found[2])
    elif part == "pending" and (found := re.fullmatch(r"(\S+): ([^,]+), ?(.*)", line)):
        status.pending.append((found[1], found[2], found[3]))
    elif part == "failures":
        status.failures.append(line)
    elif part == "usage" and (used := _usage(line)):
        status.usage[used[0]] = used[1:]
    elif part == "requests" and (found := _REQUEST.match(line)):
        status.requests += [(bundle, int(found[2])) for bundle in _bundles(found[1])]
    elif part == "demands" and (found := _GANG.match(line)):
        parts = [(bundle, int(count)) for one, count in _BUNDLE.findall(found[1]) for bundle in _bundles(one)]
        status.gangs.append((parts, found[2], int(found[3])))
    elif part == "demands" and (found := _DEMAND.match(line)):
        status.demands += [(bundle, int(found[2])) for bundle in _bundles(found[1])]


def _usage(line: str) -> tuple[str, float, float] | None:
    found = _USAGE.match(line)
    if not found:
        return None
    used, unit, total, unit_of_total, name = found.groups()
    amounts = _number(used), _number(total)
    if None in amounts:
        return None
    # an older form has one unit for both: 0.0/34.0 GiB memory
    return name, amounts[0] * UNITS[unit or unit_of_total or ""], amounts[1] * UNITS[unit_of_total or ""]


def _bundles(text: str) -> Iterator[dict[str, float]]:
    try:
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    if isinstance(read, dict) and all(isinstance(value, int | float) for value in read.values()):
        yield {str(name): float(value) for name, value in read.items()}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def refused_requests(text: str) -> list[Bundle]:
    """The shapes in lines such as "No available node types can fulfill resource requests {'GPU': 2.0}*1".

    `AutoscalerEventLogger.log_cluster_scheduling_update` in autoscaler/v2/event_logger.py; v1 writes "request {…}".
    """
    found: list[Bundle] = []
    for line in text.splitlines():
        _, said, shapes = line.partition("No available node types can fulfill")
        if said:
            found += [bundle for one in re.findall(r"\{[^{}]*\}", shapes) for bundle in _bundles(one)]
    return found


def refused_selectors(text: str) -> list[tuple[Bundle, list[Selector]]]:
    """The shapes of such lines that ask for labels: "{'CPU': 1.0}*3 with label selectors: [k LABEL_OPERATOR_IN [v]]".

    Each selector is a label's name, whether its value has to be one of the values (or none of them), and the values.
    """
    found = []
    for one, told in re.findall(r"(\{[^{}]*\})\*\d+ with label selectors: \[((?:[^\[\]]*\[[^\]]*\])+)\]", text):
        parts = re.findall(r"([^\s;]+) LABEL_OPERATOR_(NOT_IN|IN) \[([^\]]*)\]", told)
        selectors = [(key, operator == "IN", values.split(",")) for key, operator, values in parts]
        found += [(bundle, selectors) for bundle in _bundles(one)]
    return found


# ---- ray memory ----------------------------------------------------------------------------------------------------

KEEPS = ("LOCAL_REFERENCE", "PINNED_IN_MEMORY", "USED_BY_PENDING_TASK", "CAPTURED_IN_OBJECT")


@dataclass
class RayMemory:
    """What `ray memory` printed (dashboard/memory_utils.py, `memory_summary`; `store_stats_summary`).

    Attributes:
        references: the lines of references that keep an object: those in `KEEPS`, not handles of actors.
        objects: in all object stores; None if that is not said.
        used: the line of the stores' use; empty if it is not there.
        needed: percent of the stores that first copies take, which something refers to; None if that is not said.
        has_table: whether references were asked for at all (not with --stats-only).
    """

    references: list[str] = field(default_factory=list)
    objects: int | None = None
    used: str = ""
    needed: float | None = None
    has_table: bool = False


def ray_memory(text: str) -> RayMemory | None:
    """Read the output of `ray memory`; None if it is none."""
    memory = RayMemory(has_table="Grouping by" in text or "Object references for" in text)
    for line in text.splitlines():
        if any(re.search(rf"\b{kind}\b", line) for kind in KEEPS):
            memory.references.append(" ".join(line.split()))
        elif found := re.match(r"\s*Plasma memory usage .*?, (\d+) objects", line):
            memory.objects, memory.used = int(found[1]), line.strip()
            share = re.search(r"([\d.]+)% needed", line)
            memory.needed = _number(share[1]) if share else None
    return memory if memory.has_table or memory.used or memory.references else None


# ---- ray list actors -----------------------------------------------------------------------------------------------

STATES = ("ALIVE", "DEAD", "PENDING_CREATION", "DEPENDENCIES_UNREADY", "RESTARTING")
_ACTOR = re.compile(rf"([0-9a-f]{{8,}})\s+(\S.*?)\s+({'|'.join(STATES)})\b(.*)")


@dataclass(frozen=True)
class Actor:
    """One actor of `ray list actors`; what is not known of it is empty."""

    id: str
    class_name: str
    state: str
    name: str = ""
    node_id: str = ""

    def is_on(self, node_id: str) -> bool:
        """Whether it is on a Ray node; ids may be cut."""
        short = min(len(self.node_id), len(node_id))
        return short >= 8 and self.node_id[:short] == node_id[:short]


def ray_actors(text: str) -> list[Actor] | None:
    """Read the output of `ray list actors`, as a table, YAML or JSON; None if it is none."""
    rows = _structured(text)
    if rows is not None:
        return [_actor_of(row) for row in rows if isinstance(row, dict) and row.get("state")]
    found = [_actor_in(match) for match in map(_ACTOR.search, text.splitlines()) if match]
    is_empty = "No resource in the cluster" in text or re.search(r"^Total: 0$", text, re.MULTILINE)
    return found if found or is_empty or "ACTOR_ID" in text else None


def _structured(text: str) -> list | None:
    begin = text.lstrip()[:3]
    try:
        if begin.startswith("["):
            read = json.loads(text)
        elif begin.startswith(("---", "- ")):
            read = yaml.safe_load(text)
        else:
            return None
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return read if isinstance(read, list) else None


def _actor_of(row: Mapping) -> Actor:
    told = (str(row.get(key) or "") for key in ("actor_id", "class_name", "state", "name", "node_id"))
    return Actor(*told)


def _actor_in(match: re.Match) -> Actor:
    id, class_name, state, rest = match.groups()
    words = rest.split()
    if words and re.fullmatch(r"[0-9a-f]{8}", words[0]):  # of its job
        words = words[1:]
    place = next((at for at, word in enumerate(words) if re.fullmatch(r"[0-9a-f]{8,56}", word)), None)
    if place is None:
        return Actor(id, class_name, state)
    return Actor(id, class_name, state, " ".join(words[:place]), words[place])


# ---- kubectl top ---------------------------------------------------------------------------------------------------


def top(text: str) -> dict[tuple[str, str], tuple[float, float]]:
    """CPUs and bytes by Pod and container, from `kubectl top pod --containers`, with or without namespaces."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) not in (4, 5):
            continue
        try:
            amounts = float(quantity.parse(words[-2])), float(quantity.parse(words[-1]))
        except ValueError:
            continue
        found[(words[-4], words[-3])] = amounts
    return found
