"""Idle Ray nodes, cold starts, a head that is lost, Serve at zero, versions that fit."""

from __future__ import annotations

import pytest

from helpers.model import coldstart, headloss, idle, rayservice, serving
from helpers.model.idle import ACTOR, OBJECT, TASK, Bursts, Serve, Stored, kept_by
from helpers.model.releases import fits, releases


@pytest.mark.parametrize(
    ("there", "pin"),
    [
        ({}, None), ({"running_tasks": 2}, TASK), ({"actor_states": ["ALIVE"]}, ACTOR),
        ({"actor_states": ["DEAD"]}, None),
        ({"actor_states": ["DEAD", "ALIVE"], "running_tasks": 1}, TASK),
        ({"objects": [Stored(30_000_000, True)]}, OBJECT),
        ({"objects": [Stored(30_000_000, False)]}, None), ({"objects": [Stored(1000, True)]}, None),
        ({"objects": [Stored(1, True), Stored(10**9, True)]}, OBJECT), ({"serve": Serve("HeadOnly", 1)}, ACTOR),
        ({"serve": Serve("EveryNode", 0)}, None), ({"serve": Serve("HeadOnly", 0)}, None),
        ({"serve": Serve("Disabled", 0, head=True)}, ACTOR), ({"serve": Serve("HeadOnly", 0, head=True)}, ACTOR),
    ],
)  # fmt: skip
def test_what_keeps_a_node(there, pin):
    assert kept_by(**there) == pin


def test_bursts():
    assert idle.bursts(100, 60, []) == Bursts(1, 100, 60)
    assert idle.bursts(100, 60, [59, 60, 61]) == Bursts(2, 200, 59 + 60 + 60 + 60)
    assert idle.bursts(100, 0, [10], nodes=3) == Bursts(2, 200, 0)
    assert idle.bursts(100, 60, [10], nodes=3).idle_node_s == 3 * 70


def test_pods_that_come_too_late():
    late = idle.pods_too_late(2, 5, 20, 100, 30, 7.2)
    assert (late.withdrawn_before_running, late.removed_s, late.wasted_node_s) == (False, 130, 60)
    assert late.wasted_usd == pytest.approx(0.12)
    assert idle.pods_too_late(2, 5, 200, 100, 30, 7.2).removed_s == 230
    given_up = idle.pods_too_late(2, 5, 20, 4000, 30, 7.2)
    assert (given_up.withdrawn_before_running, given_up.removed_s, given_up.wasted_usd) == (True, 3605, 0)


STAGES = {"decide": 3, "create": 2, "schedule": 1, "provision": 240, "pull": 80, "start": 10, "join": 4, "load": 90}


def test_a_worker_that_may_not_take_that_long():
    assert coldstart.joins_s(STAGES) == 340
    assert coldstart.joins_s(STAGES, releases=releases("2.53.0")) is None
    assert coldstart.joins_s(STAGES, v2=False, releases=releases("2.53.0")) == 340
    own = {coldstart.ALLOCATE_TIMEOUT: "900"}
    assert coldstart.joins_s(STAGES, own, releases=releases("2.53.0")) == 340
    assert coldstart.joins_s(STAGES, {coldstart.ALLOCATE_TIMEOUT: "60"}) is None
    assert coldstart.joins_s({"create": 400, "start": 300}, releases=releases("2.53.0")) == 700
    assert coldstart.joins_s({"start": 3601}) is None


def test_a_head_that_is_lost():
    assert headloss.head_lost(False, 5) == headloss.head_lost(True, 601) == headloss.Left(False, False, True)
    assert headloss.head_lost(True, 600) == headloss.Left(True, False, False)


@pytest.mark.parametrize(
    ("there", "strategy", "needed", "switches", "by"),
    [
        (4, "NewCluster", 8, False, "old"), (7, None, 8, False, "old"), (8, "NewCluster", 8, True, "new"),
        (16, "None", 4, False, "old"), (16, "NewClusterWithIncrementalUpgrade", 4, False, "old"),
    ],
)  # fmt: skip
def test_room_for_an_upgrade(there, strategy, needed, switches, by):
    assert rayservice.upgrade(4, there, strategy) == rayservice.Upgrade(needed, switches, by)


@pytest.mark.parametrize(
    ("least", "gap", "there"),
    [
        (0, 599, (False, False, 0)), (0, 600, (True, False, 90)), (0, 660, (True, False, 90)),
        (0, 661, (True, True, 400)), (1, 9999, (False, False, 0)),
    ],
)  # fmt: skip
def test_serve_at_zero(least, gap, there):
    found = serving.first_request(least, 600, 60, 310, 90, gap)
    assert (found.replica_gone, found.node_gone, found.wait_s) == there


@pytest.mark.parametrize(
    ("ray", "python", "is_client", "fit"),
    [
        ("2.60.0", "3.11.9", True, True), ("2.60.0", "3.11.4", True, True), ("2.60.0", "3.11.4", False, False),
        ("2.60.1", "3.11.9", True, False), ("2.60.0", "3.12.9", True, False), ("2.60.0", "3.11.9", False, True),
        ("2.60.0", "3.1.9", True, False),
    ],
)  # fmt: skip
def test_versions_that_fit(ray, python, is_client, fit):
    assert fits("2.60.0", "3.11.9", ray, python, is_client) == fit
