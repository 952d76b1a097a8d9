"""`Lab`: the one object that a notebook holds."""

from __future__ import annotations

import atexit
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from helpers import doctor, lessons, state, versions
from helpers.errors import CourseError
from helpers.grading import evidence
from helpers.grading.skipped import Skipped, SkippedLab
from helpers.rayhost.driver import Driver
from helpers.rayhost.hosts import Host, Hosts
from helpers.rayhost.leases import lease_requests
from helpers.rayhost.records import end_leftovers
from helpers.rayhost.shape import Seen, try_out
from helpers.text import count

if TYPE_CHECKING:  # a lesson on Ray alone loads nothing of Kubernetes
    from helpers.cluster.session import Session
    from helpers.cluster.session.forward import Forward
    from helpers.cluster.session.job import Job
    from helpers.cluster.session.tables import Events, Pods
    from helpers.model.planner import Plan
    from helpers.observe.diagnose import Diagnosis
    from helpers.observe.explain import Explanation
    from helpers.widgets.planner import Planner
    from helpers.widgets.timeline import Drawn

GIB = 2**30
_running: dict[str, Lab] = {}  # the labs of this kernel, by lesson
_started_in: list[Path] = []  # where the notebook is, once a lab has changed the working directory


class Lab:
    """A lesson's hosts, its namespace on Kubernetes if it has one, and all that is done with them. Made by `Lab.start`.

    Attributes:
        lesson: what the lesson says of itself.
        separate: whether each host has its own network and process table (see `helpers.rayhost.hosts`).
    """

    def __init__(self, lesson: lessons.Lesson, hosts: Hosts, started_in: Path, session: Session | None = None):
        self.lesson, self._hosts, self._started_in, self._session = lesson, hosts, started_in, session
        self.separate = hosts.separate

    @classmethod
    def start(cls, id: str) -> Lab | SkippedLab:
        """Begin a lesson: end what an interrupted run of it left, and say what this machine has and what comes.

        A lesson on Kubernetes gets the cluster that runs, or one that is brought up now, and a namespace of its own.
        `KUBECONFIG` and `PATH` of this kernel are set, so that `!kubectl` finds both.

        Args:
            id: the lesson's number, such as "01"; or an exercise, such as "ex01".

        The course's root becomes the working directory, so that commands work from wherever the notebook is. While
        nbgrader runs the notebook nothing is done at all, and everything that is asked of the lab says so.

        Raises:
            CourseError: if there is no such lesson, no place to keep its records, or no cluster for it.
        """
        if state.is_grading():
            Skipped("Lab.start")()
            return SkippedLab("lab")
        lesson = lessons.exercise(id) if id.startswith("ex") else lessons.lesson(id)
        said = _end_earlier(id)
        session = _session(lesson)
        said += session.said if session else []
        log = state.state_dir() / "logs" / f"lesson-{id}.log"
        hosts = Hosts(f"{id}-{os.getpid()}-{time.time_ns() % 10**9}", log=log)
        _started_in[:] = [_notebook_directory()]
        evidence.keep_in(_started_in[0])
        os.chdir(state.course_root())
        lab = _running[id] = cls(lesson, hosts, _started_in[0], session)
        print("\n".join([*said, *lab._introduction(log)]))
        return lab

    def hosts(self, *names: str) -> list[Host]:
        """Bring up hosts with these names, in this order; those that are up already stay as they are."""
        return [self._hosts.add(name) for name in names]

    def driver(self, host: Host) -> Driver:
        """A Ray driver on `host`: `driver.run(function, …)` runs a function of this notebook there."""
        return Driver(host)

    def try_out(self, id: str, answer: object) -> object:
        """Start what the answer to a live question says, see what comes of it, and write that down as evidence.

        Args:
            id: of the question, such as "ex01.q1_run".

        Returns:
            What was seen, as a table; None if there is nothing to start yet (a sentence says why).

        Raises:
            CourseError: if there is no such question, or what was seen cannot be kept.
        """
        from helpers.grading.check import KUBERNETES, find_suite, is_unanswered

        suite = find_suite(id)
        if is_unanswered(answer):
            print("· not answered yet: nothing is started")
            return None
        try:
            plan = suite.read(answer)
        except AssertionError as error:
            print(f"✘ nothing is started: {error}")
            return None
        try:
            if suite.runs_on == KUBERNETES:
                from helpers.cluster import tryout

                seen, shown = tryout.try_out(self._kubernetes, plan), tryout.Seen
            else:
                seen, shown = try_out(self._hosts, plan), Seen
        except CourseError as error:
            print(f"✘ {error}")
            return None
        evidence.add(evidence.place(), id, plan, seen)
        return shown(plan, seen)

    @contextmanager
    def traffic(self, *hosts: Host) -> Iterator[dict[str, dict[str, float]]]:
        """Count what crosses the network of each host while the block runs.

        Yields:
            A mapping that is filled when the block ends: host name → {"sent": MB, "received": MB} (1 MB = 10**6
            bytes). It stays empty where hosts share this machine's network: nothing can be told apart there.
        """
        moved: dict[str, dict[str, float]] = {}
        before = {host.name: host.network_bytes() for host in hosts if self.separate}
        yield moved
        for host in hosts if self.separate else ():
            now = host.network_bytes()
            moved[host.name] = {way: (now[way] - before[host.name][way]) / 1e6 for way in now}

    @contextmanager
    def lease_requests(self, *hosts: Host) -> Iterator[dict[str, int]]:
        """Count the requests for a worker lease that the raylet of each host gets while the block runs.

        Yields:
            A mapping that is filled when the block ends: host name → requests.
        """
        asked: dict[str, int] = {}
        before = {host.name: lease_requests(host) for host in hosts}
        yield asked
        asked.update({host.name: lease_requests(host) - before[host.name] for host in hosts})

    def bars(self, values: Mapping[str, float | Mapping[str, float]], *, title: str, unit: str) -> None:
        """Draw one bar, or one group of bars, for each name; with the numbers as text and as a table."""
        from helpers.widgets.bars import bars

        bars(values, title=title, unit=unit)

    def machine(self) -> doctor.Report:
        """What this machine can do, what each gap costs and what closes it: the table of `course doctor`."""
        return doctor.report()

    def here(self, *parts: str) -> Path:
        """A path in the directory that the notebook was started in."""
        return self._started_in.joinpath(*parts)

    # ---- on Kubernetes -----------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """The lesson's own, such as `lesson-03`."""
        return self._kubernetes.namespace

    def apply(self, manifest: str | Path | dict, *, replace: bool = False) -> None:
        """Apply a manifest to the lesson's namespace (server-side), and say what is created, changed or unchanged.

        It says when an accepted change will not reach Pods that run, and leaves `replicas` to the autoscaler if that
        is on. If one object would be refused, nothing is applied.

        Args:
            manifest: a path, YAML text, or a dict.
            replace: delete the Pods that a change does not reach, so that KubeRay makes them anew; a RayJob as a whole.

        Raises:
            CourseError: if it cannot be read or is refused: with the field that is wrong.
        """
        self._kubernetes.apply(manifest, replace=replace)

    def wait(self, target: str, timeout_s: float | None = None) -> None:
        """Wait until an object has settled now, and say so.

        A RayCluster: head Ready, and every desired worker Pod Ready. A RayJob or Job: ended, however. A RayService:
        it answers. A Deployment or Pod: available.

        Args:
            target: such as `raycluster/demo`.
            timeout_s: seconds until this gives up; left away, what the cluster at hand may take for it.

        Raises:
            CourseError: if it does not, with the events that may say why; at once if KubeRay refuses its spec, or
                somebody deletes it.
        """
        self._kubernetes.wait(target, timeout_s)

    def get(self, target: str) -> dict:
        """An object, such as `raycluster/demo`, as the API server has it now.

        Raises:
            CourseError: if there is none.
        """
        return self._kubernetes.get(target)

    def pods(self, target: str = "") -> Pods:
        """The Pods of an object, or all of the lesson's: a table, and rows to loop over."""
        return self._kubernetes.pods(target)

    def events(self, target: str = "") -> Events:
        """The Kubernetes events of an object and of what it owns, or all of the lesson's: a table, and rows."""
        return self._kubernetes.events(target)

    @contextmanager
    def timeline(self, target: str) -> Iterator[Drawn]:
        """Record what happens inside the `with` block: to the target, its Pods, Kubernetes nodes, and in Ray.

        Args:
            target: such as `rayjob/squares`; it need not be there yet.

        Yields:
            The record, which grows: `.steps()`, `.stepper()`, `.stages()`, `.plot(…)`, `.peak(row)`, `.table()`,
            `.save(path)`.

        Raises:
            CourseError: if that names no kind of object.
        """
        from helpers.observe.recorder import Recorder
        from helpers.widgets.timeline import Drawn

        session = self._kubernetes
        recorder = Recorder(session.new_kube(), session.namespace, session.ahead_s)
        found = recorder.start(Drawn(session.label(target), recorder.now()))
        try:
            yield found
        finally:
            recorder.stop()

    def plan(self, manifest: str | Path | dict, demand: str | Iterable = (), **there: Any) -> Plan:
        """What Ray's autoscaler would launch for a demand, and what stays unmet and why; nothing is started.

        Args:
            manifest: a path, YAML text, or a dict, with one RayCluster, RayJob or RayService; or `NodeGroup`s.
            demand: tasks and actors that wait, such as "8×{GPU:1}", or a list of such.
            there: what `helpers.model.planner.plan` takes beside them: running, pending, request_resources,
                placement_groups, idle_timeout_s, version.

        Raises:
            CourseError: if the manifest cannot be read or the API server refuses it, or a demand is none.
        """
        from helpers.model.planner import plan

        return plan(_as_written(manifest), demand, **there)

    def planner(self, manifest: str | Path | dict, demand: str | Iterable = (), **there: Any) -> Planner:
        """The same with the demand on sliders, and the plan as boxes in bins.

        Args:
            manifest: as for `plan`.
            demand: what the sliders stand at first, one for each kind; left away, the kinds that the manifest suggests.
            there: as for `plan`.

        Raises:
            CourseError: as `plan`.
        """
        from helpers.widgets.planner import planner

        return planner(_as_written(manifest), demand, **there)

    def why(self, target: str) -> Diagnosis:
        """Why an object does not move, or does not shrink: one cause, what shows it, and what mends it.

        Args:
            target: such as `raycluster/demo`, `rayjob/train`, `rayservice/chat` or `pod/demo-head-x7k2p`.

        Raises:
            CourseError: if there is none, or nothing of it can be read.
        """
        from helpers.observe import diagnose, live

        kubernetes = self._kubernetes
        return diagnose.why(live.snapshot_of(kubernetes.kube, kubernetes.namespace, target), target)

    def explain(self, manifest: str | Path | dict, *, ray_version: str = "", kuberay_version: str = "") -> Explanation:
        """What a manifest means: the Pods of each group, its `ray start`, who counts what, and what is wrong with it.

        Args:
            manifest: YAML text, the path of a file, or one object as a dict.
            ray_version: what the images run; left away: what they say, or the course's.
            kuberay_version: of the operator; left away: the course's.

        Raises:
            CourseError: if it cannot be read, or nothing in it is of KubeRay.
        """
        from helpers.observe.explain import explain, text_of

        return explain(text_of(manifest), ray_version, kuberay_version)

    def run_on_head(
        self, cluster: str, function: Callable | str, *args: Any, timeout_s: float = 120, **kwargs: Any
    ) -> Any:
        """Run Python on the head of a RayCluster, by exec in its Ray container.

        Args:
            cluster: its name.
            function: a function of this notebook; or the text of a program.
            args: its arguments, as plain values; a text finds them in `sys.argv`.
            timeout_s: seconds after which it is ended.

        Returns:
            What the function returned; of a text, what it printed.

        Raises:
            CourseError: if the head is not ready, or the function cannot be sent or does not end in time.
            Exception: whatever the function raised, with a note that holds its stack trace.
        """
        return self._kubernetes.run_on_head(cluster, function, *args, timeout_s=timeout_s, **kwargs)

    def submit(self, cluster: str, entrypoint: str, **options: Any) -> Job:
        """Hand a Ray job in through the Jobs API of a cluster's dashboard.

        Args:
            cluster: its name.
            entrypoint: a shell command, such as `python jobs/where.py`: the course's `jobs/` travels with it.
            options: working_dir, another directory that travels; and arguments of Ray's
                `JobSubmissionClient.submit_job`, such as entrypoint_num_cpus.

        Returns:
            The job: `.status`, `.logs()`, `.wait()`.
        """
        return self._kubernetes.submit(cluster, entrypoint, **options)

    def forward(self, target: str, port: int) -> Forward:
        """Make a port of a Service or Pod reachable at 127.0.0.1, in the background; of that number, if it is free.

        It stays when the Pod is replaced, and says so. `.url`, `.port`; `.close()`, the end of its `with` block, or
        `clean_up` ends it.

        Args:
            target: such as `svc/demo-head-svc`.
            port: of the Service or Pod.

        Raises:
            CourseError: if there is no such object or port, or no Pod that is ready.
        """
        return self._kubernetes.forward(target, port)

    def delete(self, target: str) -> None:
        """Delete an object, such as `raycluster/demo`, and wait until it is gone with all that it owns."""
        self._kubernetes.delete(target)

    @property
    def _kubernetes(self) -> Session:
        if self._session is None:
            raise CourseError(
                f"Lesson {self.lesson.id} has no Kubernetes: it runs Ray alone.",
                'Use `lab.hosts(…)` here, or begin a lesson on Kubernetes, such as `Lab.start("03")`.',
            )
        return self._session

    # ---- the end and the beginning -----------------------------------------------------------------------------------

    @property
    def _is_exercise(self) -> bool:
        return self.lesson.id.startswith("ex")

    def clean_up(self) -> None:
        """End all that this lab started, and say where your checks stand. May be called again."""
        print(self._close())
        if not self._is_exercise:  # its checks stand beside their answers
            print(_checks_of(self.lesson.id))

    def _close(self) -> str:
        if self._hosts.closed:
            return "✔ nothing is left to clean up"
        told = self._session.close() if self._session else ""  # may be refused, and tried again
        names = list(self._hosts.by_name)
        ended = count(sum(len(host.members()) for host in self._hosts.by_name.values()), "process", "processes")
        self._hosts.close()
        _running.pop(self.lesson.id, None)
        if not names:
            return told or "✔ nothing was started"
        return f"{told}\n✔ ended {ended} on {count(len(names), 'host')} ({', '.join(names)})".strip()

    def _introduction(self, log: Path) -> list[str]:
        memory = psutil.virtual_memory()
        free, all_ = memory.available / GIB, memory.total / GIB
        enough = "" if free >= self.lesson.memory_gib else "   ✘ too little: close other programs first"
        cpus = f"{os.cpu_count()} CPUs, {psutil.cpu_percent(interval=0.1):.0f} % busy"
        return [
            f"{self._name()} · about {self.lesson.minutes:g} minutes, {self.lesson.run_minutes:g} of them to run",
            f"Backend  {self._session.introduction() if self._session else self._plain()}",
            f"Machine  {cpus}; {free:.1f} of {all_:.1f} GiB memory free,"
            f" this lesson asks for {self.lesson.memory_gib:g}{enough}",
            f"Creates  {self.lesson.creates}",
            f"Log      {log}; working directory: {Path.cwd()}",
        ]

    def _name(self) -> str:
        # an exercise has its number in its title
        return self.lesson.title if self._is_exercise else f"Lesson {self.lesson.id} · {self.lesson.title}"

    def _plain(self) -> str:
        kind = "separate hosts (Linux namespaces)" if self.separate else self._shared()
        return f"plain Ray {versions.RAY} on Python {platform.python_version()}, token auth on; {kind}"

    def _shared(self) -> str:
        return f"hosts share this machine, on shifted ports, because {self._hosts.why_shared}"


def _session(lesson: lessons.Lesson) -> Session | None:
    """The lesson's namespace; None for a lesson that has no Kubernetes."""
    if "kubernetes" not in lesson.capabilities:
        return None
    from helpers.cluster.session import Session

    return Session(lesson.id, lesson.capabilities)


def _end_earlier(id: str) -> list[str]:
    """End this kernel's own run of the lesson, and what kernels that are gone left of any; say so."""
    said = [f"This notebook's earlier run of lesson {id}: {_running[id]._close()}"] if id in _running else []
    return [*said, *end_leftovers()]


def _notebook_directory() -> Path:
    """The working directory; if an earlier lab of this kernel has set that to the course's root, the one before."""
    here = Path.cwd()
    return _started_in[0] if _started_in and here == state.course_root() else here


def _checks_of(id: str) -> str:
    from helpers.grading.check import all_suites

    scores = state.read_progress()["checks"]
    lines = []
    for name in sorted(all_suites()):
        if name.startswith(f"{id}."):
            lines.append(_standing(name, scores.get(name)))
    return "\n".join(["Your checks in this lesson:", *lines]) if lines else ""


def _standing(name: str, score: dict | None) -> str:
    if score is None:
        return f'  · {name} not answered yet: check("{name}", answer=…) works in any cell'
    symbol = "✔" if score["score"] == score["points"] else "✘"
    return f"  {symbol} {name} {score['score']:g} of {score['points']:g} points"


@atexit.register
def _close_all() -> None:
    for lab in list(_running.values()):
        lab._close()


def _as_written(manifest: Any) -> Any:
    """The text of a manifest that is named by its path; whatever else is planned for, as it is."""
    from helpers.observe.explain import text_of

    return text_of(manifest) if isinstance(manifest, str | Path) else manifest
