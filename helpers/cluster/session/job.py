"""A Ray job through the Jobs API of a cluster's dashboard."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.cluster.session.forward import Forward
from helpers.errors import CourseError
from helpers.state import course_root
from helpers.wait import wait_until

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
# they say what they upload on standard error, and one line there costs points in nbgrader
TALKATIVE = ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging")


class Job:
    """A Ray job.

    Attributes:
        id: its submission id.
        entrypoint: the command that it runs, on the head.
    """

    def __init__(self, client: Any, id: str, entrypoint: str):
        self._client, self.id, self.entrypoint = client, id, entrypoint

    @property
    def status(self) -> str:
        """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED, as it is now."""
        return str(self._ask("get_job_status").value)

    @property
    def message(self) -> str:
        """What Ray says of that status."""
        return self._ask("get_job_info").message or ""

    def logs(self) -> str:
        """What its driver has printed until now."""
        return Log(self._ask("get_job_logs"))

    def wait(self, timeout_s: float = 180) -> str:
        """Wait until it has ended, and say how; returns its status.

        Raises:
            CourseError: if it has not by then; it goes on.
        """

        def ended() -> str:
            try:
                status = self.status
            except CourseError as error:
                raise AssertionError(error.what) from None
            assert status in ENDED, f"it is {status}"
            return status

        status = wait_until(
            ended, timeout_s, what=f"the Ray job `{self.entrypoint}`", every_s=0.5,
            fix="It goes on: `.logs()` shows what it has printed, and `.wait()` waits again.",
        )  # fmt: skip
        symbol, why = ("✔", "") if status == "SUCCEEDED" else ("✘", f": {self.message}")
        print(f"{symbol} `{self.entrypoint}` {status}{why}")
        return status

    def stop(self) -> None:
        """End it."""
        self._ask("stop_job")

    def __repr__(self) -> str:
        return f"Ray job {self.id}: `{self.entrypoint}`"

    def _ask(self, what: str) -> Any:
        return _answer(lambda: getattr(self._client, what)(self.id))


class Log(str):
    """What a job printed; shown as it is, not in quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def submit(dashboard: Forward, entrypoint: str, working_dir: Path | None, options: dict) -> Job:
    """Hand a job in: the directory's files travel with it, and are its working directory.

    Args:
        dashboard: of the cluster.
        entrypoint: a shell command.
        working_dir: a directory; None for one that holds the course's `jobs/`.
        options: further arguments of Ray's `JobSubmissionClient.submit_job`.

    Raises:
        CourseError: if the dashboard does not take it.
    """
    from ray.job_submission import JobSubmissionClient  # slow: loads Ray

    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    client = _answer(lambda: JobSubmissionClient(dashboard.url))
    runtime_env = dict(options.pop("runtime_env", {}))
    with _files(working_dir) as files:
        runtime_env.setdefault("working_dir", str(files))
        id = _answer(lambda: client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env, **options))
    return Job(client, id, entrypoint)


@contextmanager
def _files(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        yield directory
        return
    # the whole checkout would be too much, and paths are to read as they do from its root: jobs/x.py
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(
            course_root() / "jobs", os.path.join(place, "jobs"), ignore=shutil.ignore_patterns("__pycache__")
        )
        yield Path(place)


def _answer(ask: Any) -> Any:
    """What Ray's client gives; its complaints as sentences."""
    try:
        return ask()
    except (RuntimeError, ConnectionError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CourseError(
            f"The dashboard does not do that: {first.rstrip('.')}.",
            "See by `lab.wait(…)` whether the head is ready, then run the cell again.",
        ) from None
