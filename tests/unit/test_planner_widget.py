"""The planner's widget: the bins are those of the plan, sliders drive it, and all that it shows is there as text."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

import pytest

from helpers.errors import CourseError
from helpers.lab import Lab
from helpers.model.demand import Demand
from helpers.model.planner import NodeGroup, Plan, RayNode, Running, plan
from helpers.model.planner.source import cluster_in
from helpers.state import course_root
from helpers.widgets import bins
from helpers.widgets.planner import MOST, Planner, planner, suggested, top

GIB = 2**30
DEMO = course_root() / "manifests" / "03-raycluster" / "demo.yaml"
CPU_4 = NodeGroup("cpu", {"CPU": 4}, most=3)
GPU_2 = NodeGroup("gpu", {"CPU": 8, "GPU": 2, "memory": 32 * GIB}, most=2)
UNREADABLE = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: c}
spec:
  enableInTreeAutoscaling: true
  headGroupSpec: {template: {spec: {containers: [{name: ray, resources: {limits: {cpu: 1}}}]}}}
  workerGroupSpecs:
  - {groupName: w, maxReplicas: 2, template: {spec: {containers: [{name: ray, resources: {limits: {memory: 1Gi}}}]}}}
"""


def svg(made: Plan, shapes=()) -> ElementTree.Element:
    return ElementTree.fromstring(base64.b64decode(re.search(r'base64,([^"]+)"', bins.picture(made, shapes))[1]))


def words(made: Plan) -> list[str]:
    return ["".join(one.itertext()) for one in svg(made).iter("{http://www.w3.org/2000/svg}text")]


def boxes(made: Plan) -> list[tuple[str, float]]:
    """The boxes in the picture below its key: their look, and how wide they are."""
    found = [one for one in svg(made).iter("{http://www.w3.org/2000/svg}rect") if "url(" in one.get("fill", "")]
    kinds = len({one.get("fill") for one in found})
    return [(one.get("fill")[9:-1], float(one.get("width"))) for one in found[kinds:]]


def parts(made: Planner):
    """The sliders; then the way it is asked, autoscaler, the picture, what is said, the checkbox, table and twin."""
    count = len(made.shapes)
    return made.widget.children[:count], *made.widget.children[count:]


# ---- what is drawn


def test_the_bins_of_a_plan():
    made = plan([CPU_4, GPU_2], ["9×{CPU:1}", "{GPU:1}"], running=[Running("cpu", 1, {"CPU": 3})], pending={"cpu": 1})
    assert bins.table(made) == [
        ("headgroup", "running", "nothing", "nothing"),
        ("cpu 1", "running", "3×{CPU: 1}", "0 of 4 CPU"),
        ("cpu 2", "pending", "4×{CPU: 1}", "0 of 4 CPU"),
        ("gpu new 1", "new", "1×{GPU: 1}, 2×{CPU: 1}", "6 of 8 CPU, 1 of 2 GPU"),
    ]
    assert [one.used("CPU") for one in bins.bins(made)[1:]] == [1, 0, 0]
    assert bins.summary(made) == "✔ no box is without a place; 7 in Ray nodes that are there, 3 in new ones (1 Pod)."


def test_the_table_and_the_alt_text_say_what_the_plan_says():
    made = plan([CPU_4, GPU_2], ["20×{CPU:1}", "9×{GPU:1}", "{CPU:16}"], running=[Running("cpu", 2, None, 99)])
    rows, told = bins.table(made), bins.alt(made)
    found = bins.bins(made)
    assert sum(one.count for one in found) == len(made.nodes)
    for one in found:
        same = [node for node in made.nodes if (node.group, node.state) == (one.node.group, one.node.state)]
        assert one.count == sum(node.takes == one.node.takes for node in same)
        assert f"{one.name}, {one.state}: takes {', '.join(map(str, one.node.takes)) or 'nothing'}; free: " in told
    outside = [(bins.OUTSIDE, one.reason, str(one.what), "") for one in made.unmet]
    assert rows[-len(outside) :] == outside and {row[1] for row in outside} == {"max-replicas", "too-big-for-any-group"}
    assert all(f"Outside: {what}, {reason}." in told for _, reason, what, _ in outside)
    assert f'alt="{told}"' in bins.picture(made), "nothing in it is for HTML"


def test_each_box_is_drawn_to_scale():
    made = plan([CPU_4, GPU_2], ["2×{CPU:2}", "{CPU:1, GPU:2}"])
    assert [row[2] for row in bins.table(made)[1:]] == ["1×{CPU: 1, GPU: 2}, 2×{CPU: 2}"]
    assert boxes(made) == [("A", 40), ("B", 80), ("B", 80), ("A", 80)]  # by CPUs, and then by GPUs
    large = plan([NodeGroup("large", {"CPU": 64})], "33×{CPU:1}")
    ((_, width),) = boxes(large)
    assert width == pytest.approx(33 / 64 * 520, abs=0.1) and "33 × A" in words(large), "too narrow for a letter each"


def test_what_is_outside_has_its_reason_in_words():
    made = plan([CPU_4], ["5×{CPU:3}", "{GPU:1}"])
    told = " ".join(words(made))
    assert "Outside, since there is no place:" in told
    assert "2×{CPU: 3}max-replicas: a group that fits is at its maxReplicas" in told
    assert "1×{GPU: 1}resource-not-declared: no group has any of one of the resources asked for" in told
    assert boxes(made)[-3:] == [("A", 120), ("A", 120), ("B", 40)]
    assert bins.summary(made) == "✘ 3 boxes have no place; 0 in Ray nodes that are there, 3 in new ones (3 Pods)."
    wide = plan([CPU_4], "3×{CPU:40}")
    assert sum(width for _, width in boxes(wide)) < 780 - 118, "it stays in the picture"


def test_a_hundred_ray_nodes_are_folded():
    made = plan([NodeGroup("cpu", {"CPU": 4}, most=100)], "397×{CPU:1}")
    assert [row[:3] for row in bins.table(made)[1:]] == [
        ("99 × cpu", "new", "4×{CPU: 1}"),
        ("cpu new 100", "new", "1×{CPU: 1}"),
    ]
    assert "99 × cpunew" in words(made) and int(svg(made).get("height")) < 300
    assert bins.summary(made).endswith("397 in new ones (100 Pods).")
    each = plan([NodeGroup("cpu", {"CPU": 100})], running=[Running("cpu", 1, {"CPU": free}) for free in range(50)])
    assert len(bins.table(each)) == 51 and int(svg(each).get("height")) < 1200
    assert f"and {51 - bins.MOST_DRAWN} more kinds of Ray nodes: they are in the table" in words(each)


def test_one_lane_for_each_thing_that_is_asked_for():
    assert bins.resources(plan([CPU_4, GPU_2], "{CPU:1}")) == ["CPU"], "no Ray node has a GPU yet"
    assert bins.resources(plan([CPU_4, GPU_2], "{CPU:8}")) == ["CPU", "GPU"]
    assert bins.resources(plan([CPU_4], "{GPU:1}")) == []
    made = plan([CPU_4, GPU_2], "{CPU:1, memory:8Gi}")
    assert bins.resources(made) == ["CPU", "GPU", "memory"]
    assert bins.table(made)[1][3] == "7 of 8 CPU, 2 of 2 GPU, 24Gi of 32Gi memory"
    assert "headgrouprunning; it has no CPU and no GPU and no memory" in words(made)


def test_what_stops_and_what_is_kept():
    running = [Running("cpu", 2, None, 99)]
    told = [row[:2] for row in bins.table(plan([CPU_4], request_resources="{CPU:4}", running=running))]
    assert told[1:] == [("cpu 1", "running, request_resources counts on it"), ("cpu 2", "running, stops: idle")]


def test_a_box_keeps_its_letter():
    shapes = [Demand({"GPU": 1}), Demand({"CPU": 1})]
    made = plan([CPU_4], ["{CPU:2}", "{CPU:1}"])
    assert list(bins.letters(made, shapes).values()) == ["A", "B", "C"]
    assert bins.letters(made, shapes)[Demand({"CPU": 1}).shape] == "B"
    many = Plan("v2", {}, nodes=(RayNode("n", "g", "new", {}, {}, tuple(Demand({f"r{n}": 1}) for n in range(30))),))
    assert len(set(bins.letters(many).values())) == 30 and svg(many) is not None


def test_v1_keeps_no_account():
    made = plan([CPU_4, GPU_2], ["6×{GPU:1}"], running=[Running("cpu")], version="v1")
    assert bins.table(made)[0] == ("2 × gpu", "new", "not known", "not known")
    assert "2 × gpu, new" in words(made) and bins.NO_ACCOUNT in words(made)
    assert bins.NO_ACCOUNT in bins.alt(made) and bins.NO_ACCOUNT in bins.summary(made)
    assert bins.summary(made).startswith("✘ 2 boxes have no place; 2 new Pods.")


def test_nothing_of_a_manifest_is_taken_for_html():
    made = plan([NodeGroup("cpu", {"CPU": 1, "<b>": 1})], ["{CPU:1}", Demand({"<b>": 1, '"': 1})])
    assert "<b>" not in bins.picture(made) and any("<b>" in one for one in words(made))


# ---- the sliders


def test_the_sliders_are_what_the_groups_suggest():
    tagged = NodeGroup("odd", {"CPU": 4, "tag": 3}, most=1)
    assert list(map(str, suggested(cluster_in([CPU_4, GPU_2, tagged])))) == [
        "1×{CPU: 1}",
        "0×{CPU: 4}",
        "0×{CPU: 8}",
        "0×{GPU: 1}",
        "0×{tag: 1}",
    ]
    assert list(map(str, suggested(cluster_in(DEMO.read_text())))) == ["1×{CPU: 1}", "0×{GPU: 1}"]
    assert list(map(str, suggested(cluster_in([NodeGroup("none", {})])))) == ["1×{CPU: 1}"]


@pytest.mark.parametrize(("shape", "count"), [({"CPU": 1}, 35), ({"CPU": 3}, 9), ({"GPU": 1}, 6), ({"TPU": 1}, 2)])
def test_a_slider_reaches_what_is_unmet(shape, count):
    groups = [CPU_4, GPU_2]
    assert top(cluster_in(groups), Demand(shape)) == count
    assert plan(groups, Demand(shape, count)).unmet
    assert top(cluster_in([NodeGroup("cpu", {"CPU": 4})]), Demand({"CPU": 1})) == MOST


def test_sliders_drive_the_plan():
    made = planner(DEMO.read_text())
    (cpus, gpus), _, _, picture, said, _, _, twin = parts(made)
    assert (cpus.description, gpus.description) == ("A  {CPU: 1}", "B  {GPU: 1}")
    assert (cpus.value, cpus.min, gpus.value, gpus.max) == (1, 0, 0, 6)
    assert 'aria-live="polite"' in said.value and "launch: 1 Pod of cpu-group" in said.value
    before = picture.value
    gpus.value = 6
    assert made.plan() == plan(DEMO.read_text(), ["{CPU:1}", "6×{GPU:1}"]) and picture.value != before
    assert "✘ 2 boxes have no place" in said.value
    assert "unmet: 2×{GPU: 1}: max-replicas: a group that fits is at its maxReplicas" in said.value
    assert "Outside: 2×{GPU: 1}, max-replicas." in picture.value
    assert "lab.plan(manifest, [&#x27;1×{CPU: 1}&#x27;, &#x27;6×{GPU: 1}&#x27;]" in twin.value
    cpus.value = gpus.value = 0
    assert made.demand == [] and "✔ no box is without a place" in said.value


def test_a_demand_that_is_given_is_where_the_sliders_begin():
    made = planner([CPU_4], ["2×{CPU:1}", "5×{CPU:1}", "300×{GPU:1}"], running=[Running("cpu", 3)])
    sliders, *_ = parts(made)
    assert [(one.value, one.max) for one in sliders] == [(7, 15), (300, 300)]
    assert made.plan() == plan([CPU_4], ["7×{CPU:1}", "300×{GPU:1}"], running=[Running("cpu", 3)])
    assert "running=…" in made.twin
    again = planner([CPU_4], "{CPU:1}", running=(Running("cpu") for _ in range(2)))
    assert again.plan() == again.plan() == plan([CPU_4], "{CPU:1}", running=[Running("cpu", 2)])


def test_a_placement_group():
    made = planner([CPU_4, GPU_2], ["2×{CPU:3}"])
    _, way, _, picture, said, *_ = parts(made)
    way.value = "STRICT_PACK"
    assert "takes 1×{CPU: 6}; free: 2 of 8 CPU" in picture.value
    made.widget.children[0].value = 3
    assert "unmet: 1×STRICT_PACK(3×{CPU: 3}): pack-too-big-for-one-node: " in said.value
    assert "Outside: 1×STRICT_PACK(3×{CPU: 3}), pack-too-big-for-one-node." in picture.value
    assert "placement_groups=[Gang('STRICT_PACK', (parse('3×{CPU: 3}'),))], version='v2')" in made.twin
    way.value = "tasks"
    assert made.gangs == [] and "launch: " in said.value


def test_the_other_autoscaler():
    made = planner([CPU_4], "2×{CPU:4}", version="v1")
    _, _, version, picture, said, *_ = parts(made)
    assert version.value == "v1" and bins.NO_ACCOUNT in said.value and "2 × cpu, new" in picture.value
    version.value = "v2"
    assert "2 × cpu, new: takes 1×{CPU: 4}; free: 0 of 4 CPU" in picture.value
    assert made.plan().version == "v2" and "version=&#x27;v2&#x27;" in parts(made)[-1].value


def test_the_table_is_there_when_it_is_wanted():
    made = planner([CPU_4], "{CPU:1}")
    (slider,), _, _, _, _, as_table, rows, _ = parts(made)
    assert rows.value == ""
    as_table.value = True
    slider.value = 4
    assert "<td>4×{CPU: 1}</td>" in rows.value


def test_what_the_autoscaler_cannot_read_is_told():
    made = planner(UNREADABLE)
    (slider,), _, _, picture, said, *_ = parts(made)
    assert made.plan().error == "config-rejected"
    slider.value = 2
    assert "✘ No plan is made." in said.value and picture.value == ""
    assert "error: config-rejected: the autoscaler cannot read the manifest" in said.value
    assert "note: Ray says: " in said.value and "config-rejected" in str(made)


def test_an_error_is_a_sentence_and_the_sliders_stay():
    made = planner([CPU_4], "{CPU:1}", pending={"gone": 1})
    (slider,), _, version, picture, said, *_ = parts(made)
    for _ in range(2):
        assert "✘ There is no group gone of workers in it. Its groups are cpu." in said.value and not picture.value
        slider.value += 1
    assert str(made).startswith("✘ There is no group gone") and not slider.disabled
    version.value = "v1"
    assert "✘ There is no group gone" in said.value
    unknown = planner([CPU_4], version="v3")
    assert "✘ &#x27;v3&#x27; is no autoscaler of Ray." in parts(unknown)[4].value
    with pytest.raises(CourseError, match="Nothing here is of KubeRay: line 1 begins a ConfigMap"):
        planner("kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}")
    with pytest.raises(CourseError, match="is no demand"):
        planner([CPU_4], "8 GPUs")


def test_an_autoscaler_that_is_off():
    made = planner(DEMO.read_text().replace("enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false"))
    assert "autoscaler-off: enableInTreeAutoscaling is not true" in parts(made)[4].value


def test_every_control_has_a_name():
    sliders, way, version, _, _, as_table, *_ = parts(planner([CPU_4, GPU_2]))
    assert all(one.description for one in (*sliders, way, version, as_table))


def test_the_text_says_all_that_the_widget_shows():
    made = planner([CPU_4], ["2×{CPU:3}", "{GPU:1}"])
    bundle = made._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    text = bundle["text/plain"]
    assert text == str(made) == repr(made)
    for _, _, _, cell in bins.table(made.plan()):
        assert cell in text
    for word, row in made.plan().rows():
        assert word in text and row in text
    assert "Ray node       State" in text and "Or in a cell: `lab.plan(manifest, ['2×{CPU: 3}', '1×{GPU: 1}']" in text


def test_the_door(tmp_path, capfd):
    (tmp_path / "c.yaml").write_text(DEMO.read_text())
    for source in (DEMO.read_text(), tmp_path / "c.yaml", str(tmp_path / "c.yaml")):
        made = Lab.planner(None, source, "3×{GPU:1}")
        assert made.plan().launch == Lab.plan(None, source, "3×{GPU:1}").launch == {"cpu-group": 1, "gpu-group": 3}
    assert made.widget and capfd.readouterr() == ("", "")
