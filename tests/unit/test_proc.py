"""What is read from /proc."""

from __future__ import annotations

import os
import sys

import pytest

from helpers.proc import namespace_pids

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


def test_a_processs_pids_begin_with_its_own() -> None:
    assert namespace_pids(os.getpid())[0] == os.getpid()


def test_a_process_that_is_gone_is_an_os_error() -> None:
    with pytest.raises(OSError):
        namespace_pids(2**22 + 1)  # above the highest pid of Linux
