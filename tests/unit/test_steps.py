"""The steps of a RayCluster: order, words, and what is left out; all from objects as the API server gives them."""

from __future__ import annotations

from datetime import datetime
from html.parser import HTMLParser

import pytest

from helpers.observe.steps import Steps, steps_of
from helpers.widgets.stepper import Stepper

CPU, HEAD, WORKER = "kubelet of cpu-a", "demo-head-x7k2p", "demo-cpu-group-worker-b2g9t"


def at(second: int) -> str:
    return f"2026-11-30T01:52:{second:02}Z"


def event(second, reason, message, *, on=("RayCluster", "demo"), field="", component="raycluster-controller", host=""):
    kind, name = on
    return {
        "metadata": {"namespace": "lesson-03", "creationTimestamp": at(59)},
        "involvedObject": {"kind": kind, "name": name, "fieldPath": field},
        "reason": reason,
        "message": message,
        "firstTimestamp": at(second),
        "lastTimestamp": at(58),
        "source": {"component": component, "host": host},
    }


def of_kubelet(second, reason, message, pod, container="", init=False):
    field = f"spec.{'initContainers' if init else 'containers'}{{{container}}}" if container else ""
    return event(second, reason, message, on=("Pod", pod), field=field, component="kubelet", host="cpu-a")


def scheduled(moment, pod):
    """The scheduler writes through events.k8s.io: it has a finer time, and no source."""
    return event(0, "Scheduled", f"Successfully assigned lesson-03/{pod} to cpu-a", on=("Pod", pod)) | {
        "firstTimestamp": None,
        "eventTime": moment,
        "source": {},
        "reportingComponent": "default-scheduler",
    }


def pod(name, ready, init_ended=None):
    waits = [{"name": "wait-gcs-ready", "state": {"terminated": {"exitCode": 0, "finishedAt": at(init_ended or 0)}}}]
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": "cpu-a"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(ready)}],
            "initContainerStatuses": waits if init_ended else [],
        },
    }


CLUSTER = {
    "kind": "RayCluster",
    "metadata": {"name": "demo", "creationTimestamp": at(2)},
    "status": {
        "conditions": [
            {"type": "HeadPodReady", "status": "True", "lastTransitionTime": at(12)},
            {"type": "RayClusterProvisioned", "status": "True", "lastTransitionTime": at(25)},
        ],
        "stateTransitionTimes": {"ready": at(25)},
    },
}
EVENTS = [
    of_kubelet(25, "Unhealthy", "Readiness probe failed: Get ...", WORKER, "ray-worker"),
    of_kubelet(14, "Started", "Container started", WORKER, "ray-worker"),
    of_kubelet(3, "Started", "Container started", WORKER, "wait-gcs-ready", init=True),
    of_kubelet(3, "Started", "Container started", HEAD, "ray-head"),
    of_kubelet(3, "Created", "Container created", HEAD, "ray-head"),
    of_kubelet(3, "Pulled", "Container image already present on machine", HEAD, "ray-head"),
    scheduled("2026-11-30T01:52:02.912345Z", HEAD),
    event(2, "CreatedWorkerPod", f"Created worker Pod lesson-03/{WORKER}"),
    event(2, "CreatedHeadPod", f"Created head Pod lesson-03/{HEAD}"),
    event(2, "CreatedService", "Created service lesson-03/demo-head-svc"),
    event(2, "CreatedServiceAccount", "Created service account lesson-03/demo"),
]


@pytest.fixture
def steps() -> Steps:
    return steps_of(CLUSTER, [pod(HEAD, 12), pod(WORKER, 25, init_ended=13)], EVENTS)


def test_cause_comes_before_effect_whatever_the_order_of_the_events(steps):
    assert steps.rows() == [
        ("+0 s", "you", "stored RayCluster demo"),
        ("+0 s", "operator", "Created service account demo"),
        ("+0 s", "operator", "Created service demo-head-svc"),
        ("+0 s", "operator", f"Created head Pod {HEAD}"),
        ("+0 s", "operator", f"Created worker Pod {WORKER}"),
        ("+0 s", "scheduler", f"Successfully assigned {HEAD} to cpu-a"),
        ("+1 s", CPU, f"{WORKER}: started wait-gcs-ready"),
        ("+1 s", CPU, f"{HEAD}: started ray-head"),
        ("+10 s", CPU, f"{HEAD}: Ready"),
        ("+11 s", CPU, f"{WORKER}: wait-gcs-ready ended"),
        ("+12 s", CPU, f"{WORKER}: started ray-worker"),
        ("+23 s", CPU, f"{WORKER}: Readiness probe failed: Get ..."),
        ("+23 s", CPU, f"{WORKER}: Ready"),
        ("+23 s", "operator", "wrote the condition RayClusterProvisioned"),
        ("+23 s", "operator", "wrote `state: ready`"),
    ]
    assert steps_of(CLUSTER, [pod(WORKER, 25, init_ended=13), pod(HEAD, 12)], EVENTS[::-1]).rows() == steps.rows()


def test_every_step_has_a_meaning_and_a_source(steps):
    assert all(step.meaning and step.source for step in steps)
    assert next(step for step in steps if "Created service demo" in step.what).source == "event CreatedService"


def test_an_event_that_came_again_counts_from_its_first_time():
    again = event(5, "FailedScheduling", "0/3 nodes are available", on=("Pod", HEAD)) | {"count": 7}
    assert ("+3 s", "operator", f"{HEAD}: 0/3 nodes are available") in steps_of(CLUSTER, [], [again]).rows()


def test_of_how_a_container_ended_the_exit_code_is_left():
    told = (
        "&ContainerStateTerminated{ExitCode:137,Signal:0,Reason:Error,\nStartedAt:2026-11-30,ContainerID:process://2,}"
    )
    deleted = event(9, "DeletedHeadPod", f"Deleted head Pod lesson-03/{HEAD}; Ray container terminated status: {told}")
    (_, step) = steps_of(CLUSTER | {"status": {}}, [], [deleted])
    assert step.what == f"Deleted head Pod {HEAD}; Ray container terminated status: exit code 137"


def test_a_cluster_that_a_rayjob_made_was_not_stored_by_you():
    owned = CLUSTER | {"metadata": CLUSTER["metadata"] | {"ownerReferences": [{"kind": "RayJob"}]}}
    assert next(iter(steps_of(owned, [], []))).who == "operator"

    unready = {"conditions": [{"type": "Ready", "status": "False"}]}
    waiting = {"metadata": {"name": WORKER}, "spec": {}, "status": unready}
    new = CLUSTER | {"status": {"conditions": [{"type": "RayClusterProvisioned", "status": "False"}]}}
    waiting = {
        "metadata": {"name": WORKER},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    failed = pod(WORKER, 20, init_ended=13)
    failed["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] = 1
    failed["status"]["conditions"] = []
    assert len(steps_of(new, [waiting, failed], [])) == 1
    assert len(steps_of(CLUSTER | {"status": {}}, [{"metadata": {"name": HEAD}, "spec": {}}], [])) == 1


def test_since_begins_a_new_clock(steps):
    new = steps.since(datetime.fromisoformat("2026-11-30T01:52:13.700Z"))
    assert new.rows()[0] == ("+0 s", CPU, f"{WORKER}: wait-gcs-ready ended") and len(new) == 6
    later = steps.since(datetime.fromisoformat(at(59)))
    assert str(later) == "· raycluster/demo: no steps" and "no steps" in later._repr_html_()


def test_text_and_html_say_the_same(steps):
    text, page = str(steps), steps._repr_html_()
    for _, who, what in steps.rows():
        assert who in text and who in page
        assert what.split(": ")[-1].split()[-1].strip("`") in text
    assert "<script>" not in steps_of(CLUSTER, [], [event(3, "CreatedService", "<script>")])._repr_html_()
    assert max(map(len, text.splitlines())) <= 118


# ---- the stepper


class Rows(HTMLParser):
    """The rows of a table, and which is marked as the current one."""

    def __init__(self, page: str):
        super().__init__()
        self.rows, self.current = 0, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.current += [self.rows] if dict(attrs).get("aria-current") == "step" else []
            self.rows += 1


@pytest.fixture
def walk(steps) -> Stepper:
    return Stepper(steps)


def parts(walk):
    bar, said, _, table = walk.widget.children
    return *bar.children, said, table


def test_next_and_back_walk_step_by_step(walk, steps):
    back, onward, slider, said, table = parts(walk)
    assert "Step 1 of 15" in said.value and 'aria-live="polite"' in said.value
    assert Rows(table.value).rows == 2, "the heads, and the first step: what comes is not told yet"
    onward.click()
    onward.click()
    assert slider.value == 3 and walk.position == 2
    assert "Created service demo-head-svc" in said.value and "A name for the head" in said.value
    assert Rows(table.value).current == [3] and Rows(table.value).rows == 4 and table.value.count("▶") == 1
    back.click()
    assert walk.step == steps.steps[1] and "service account" in said.value


def test_both_ends_hold_and_keep_the_focus(walk):
    back, onward, slider, said, table = parts(walk)
    back.click()
    assert slider.value == 1 and not back.disabled
    slider.value = slider.max
    onward.click()
    assert slider.value == slider.max == 15 and not onward.disabled
    assert "state: ready" in said.value and Rows(table.value).rows == 16


def test_every_control_has_a_name_and_the_keyboard_reaches_it(walk):
    back, onward, slider, _, _ = parts(walk)
    assert [control.description for control in (back, onward, slider)] == ["Back", "Next", "Step"]
    assert not any(control.disabled for control in (back, onward, slider))


def test_the_plain_twin_has_every_step_and_its_meaning(walk, steps):
    bundle = walk._repr_mimebundle_()
    assert bundle["text/plain"] == str(walk) and "application/vnd.jupyter.widget-view+json" in bundle
    for step in steps:
        assert step.what in str(walk) and step.meaning in str(walk)


def test_it_works_without_a_front_end(walk):
    assert walk.go(99).position == 14 and walk.go(-3).position == 0
    assert walk.go(2).says.startswith("Step 3 of 15, 0 s after the first · operator: Created service")
    assert parts(walk.go(4))[2].value == 5, "the widget begins where one is"


def test_a_single_step_is_text():
    assert set(Stepper(steps_of(CLUSTER | {"status": {}}, [], []))._repr_mimebundle_()) == {"text/plain"}
