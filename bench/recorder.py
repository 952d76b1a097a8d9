"""Recording a timeline: at most 2 % of a core, while a RayCluster works and gets a new worker.

Counted is what the recorder adds: its threads here, and its program in the head; the start of both is not, in which
Ray is imported there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from _figure import finish, report
from raycluster import embedded, run, start

BOUND, SPAN_S = 2.0, 60.0
MARK = b"def end_with_input"  # in the program's own command line
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def in_the_head_s() -> float:
    """Seconds of a core that the recorder's program in the head has used so far."""
    total, programs = 0, 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if words[0].endswith(b"python") and any(MARK in word for word in words):
            total, programs = total + int(fields[11]) + int(fields[12]), programs + 1
    if programs != 1:
        raise SystemExit(f"{programs} programs of the recorder run in heads on this machine, and it takes one")
    return total / TICKS_A_SECOND


def main() -> None:
    if sys.platform != "linux":
        print("– recorder: the embedded cluster needs Linux; nothing was measured")
        return
    from helpers.kube import Kube
    from helpers.observe.recorder import Recorder
    from helpers.observe.timeline import Timeline

    with tempfile.TemporaryDirectory(prefix="course-bench-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        with embedded(directory) as kubectl:
            start(kubectl)
            recorder = Recorder(Kube(Path(kubectl[-1].partition("=")[2])), "default")
            seen = recorder.start(Timeline("raycluster/bench", recorder.now()))
            run(kubectl, "delete", "pod", "-l", "ray.io/group=cpu", "--wait=false")
            begin, here_s, there_s = time.monotonic(), time.process_time(), in_the_head_s()
            time.sleep(SPAN_S)
            span_s, here_s, there_s = (
                time.monotonic() - begin, time.process_time() - here_s, in_the_head_s() - there_s
            )  # fmt: skip
            recorder.stop()
    share = 100 * (here_s + there_s) / span_s
    beside = f"{here_s:.2f} s here and {there_s:.2f} s in the head, of {span_s:.0f} s with {len(seen.records)} records"
    finish(report("the recorder's share of a core", share, BOUND, beside, "%"))


if __name__ == "__main__":
    main()
