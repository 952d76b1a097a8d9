"""Which capabilities a container has; the numbers are those of linux/capability.h."""

from __future__ import annotations

import pytest

from helpers.cluster.embedded.runtime import capabilities

USUAL = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31}
SYS_PTRACE, NET_ADMIN, CHECKPOINT_RESTORE = 19, 12, 40


@pytest.mark.parametrize(
    ("add", "drop", "has"),
    [
        ([], [], USUAL),
        (["SYS_PTRACE"], [], USUAL | {SYS_PTRACE}),
        (["cap_net_admin"], ["CHOWN"], (USUAL | {NET_ADMIN}) - {0}),
        ([], ["ALL"], set()),
        (["NET_BIND_SERVICE"], ["ALL"], {10}),
        (["ALL"], [], set(range(CHECKPOINT_RESTORE + 1))),
        (["ALL"], ["CHOWN"], set(range(1, CHECKPOINT_RESTORE + 1))),
        (["CHOWN"], ["CHOWN"], USUAL - {0}),
    ],
)
def test_what_a_container_has(add, drop, has):
    assert capabilities.numbers(add, drop) == has


def test_names_that_no_kernel_has():
    assert capabilities.unknown(["SYS_ADMIN", "CAP_BPF", "all", "FLY"]) == ["FLY"]
