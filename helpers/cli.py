"""The command `course`. Each verb loads what it needs when it runs, so that `course --help` is quick."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree

import typer

from helpers.errors import CourseError
from helpers.state import course_root

if TYPE_CHECKING:
    from helpers.cluster.backend import Choice
    from helpers.grading import batch
    from helpers.observe.diagnose import Diagnosis

app = typer.Typer(
    help="Ray Clusters, KubeRay and Autoscaling: a course of live notebooks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

STAGES = {
    "unit": "no cluster",
    "contract": "the course checks itself",
    "live": "real Ray processes and real clusters",
    "browser": "JupyterLab in a real browser",
    "soak": "hours of kills and of Pods; not part of `course test`",
}
SLOWEST = 10
LIVE = "Start the answers to live questions on this machine, in place of what learners report of their runs."


def main() -> None:
    """Run `course`; what the user can mend is said in two sentences, without a stack trace."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # an old locale must not turn ✘ into a stack trace
    # `ray`, `jupyter` and what nbgrader calls by name must be the course's own
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    try:
        app(prog_name="course")
    except CourseError as error:
        print(f"✘ {error.what}\n  → {error.fix}", file=sys.stderr)
        sys.exit(1)


@app.command()
def lab(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="TCP port; 8888 or the next free one if left away.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, where there is one.")] = True,
) -> None:
    """Say what this machine can do, and open the course in JupyterLab."""
    from helpers import doctor as machine
    from helpers import jupyter

    report = machine.report()
    print(report.short(), flush=True)
    with contextlib.suppress(CourseError):  # the lessons that need a cluster say why there is none
        begun = _choice("").backend.prepare()
        print(begun, end="\n" if begun else "", flush=True)
    jupyter.open_lab(port, browser)


@app.command()
def doctor() -> None:
    """Show what this machine can do, what each gap costs, and what closes it."""
    from rich.console import Console

    from helpers import doctor as machine

    Console().print(machine.report())


@app.command()
def notebooks(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a notebook is not what its source makes.")
    ] = False,
    source: Annotated[
        Path | None, typer.Option("--from", help="Write an edited notebook back into its source.")
    ] = None,
) -> None:
    """Make lessons/ and solutions/ from authoring/."""
    from helpers import authoring

    if check and source:
        raise CourseError("--check and --from cannot be used together.", "Use one, then the other.")
    if source:
        print(f"✔ {_shown(authoring.write_back(source))} says what {source} says")
        return
    made = authoring.build_all(check)
    if check:
        print(f"✔ {len(made)} notebooks are what their sources say")
    else:
        print("\n".join(f"✔ written: {_shown(notebook)}" for notebook in made) or "✔ all notebooks are up to date")


def _shown(path: Path) -> Path:
    return path.relative_to(course_root()) if path.is_relative_to(course_root()) else path


@app.command()
def reset(
    exercise: Annotated[str | None, typer.Argument(help='Such as "ex01".')] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Begin again with no answers; the old ones are kept.")
    ] = False,
) -> None:
    """Begin an exercise again, or forget your answers in lessons; a dated copy of the old ones is kept."""
    if not (exercise or progress):
        raise CourseError(
            "`course reset` alone resets nothing.",
            "Run `course reset ex01` for an exercise, or `course reset --progress` to forget your answers in lessons.",
        )
    if exercise:
        print(_reset_exercise(exercise))
    if progress:
        print(_reset_progress())


def _reset_exercise(exercise: str) -> str:
    from helpers.grading import own

    done = own.release(exercise)
    if not done.written:
        return f"exercises/{exercise} is as it was released: there was nothing to reset."
    lines = [f"✔ {exercise} begins again: {', '.join(str(_shown(path)) for path in done.written)}"]
    lines += [f"  what was there is kept in {_shown(path)}" for path in done.kept]
    return "\n".join([*lines, "  If it is open in JupyterLab: File → Reload Notebook from Disk, before you save it."])


def _reset_progress() -> str:
    from helpers import state

    kept = state.reset_progress()
    return f"✔ Your answers are reset; the old ones are kept in {kept}" if kept else "There were no answers to reset."


# ---- exercises -------------------------------------------------------------------------------------------------------


@app.command()
def check(
    exercise: Annotated[str, typer.Argument(help='Such as "ex01".')],
    live: Annotated[bool, typer.Option("--live", help=LIVE)] = False,
) -> None:
    """Grade your own notebook of an exercise as an instructor would; nothing is sent or kept."""
    from helpers.grading import own

    run = _live(exercise) if live else None
    print(f"Grading exercises/{exercise}/{exercise}.ipynb …", flush=True)
    checked = own.check(exercise, run)
    print(checked)
    if checked.row.score is None:
        raise typer.Exit(1)


@app.command()
def release(
    exercise: Annotated[str | None, typer.Argument(help='Such as "ex01"; all of them if left away.')] = None,
) -> None:
    """Make exercises/, which learners get, from solutions/."""
    from helpers.grading import own

    for name in [exercise] if exercise else own.exercises():
        done = own.release(name)
        print("\n".join(f"✔ written: {_shown(path)}" for path in done.written) or f"✔ {name} is up to date")
        for path in done.kept:
            print(f"  what was there is kept in {_shown(path)}")


@app.command()
def grade(
    exercise: Annotated[str, typer.Argument(help='Such as "ex01".')],
    submissions: Annotated[
        Path | None,
        typer.Option(help="Holds STUDENT/ex01/ex01.ipynb; grading/submitted in the course if left away."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="One student a line: who handed in nothing is in the table too.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run submissions without a sandbox, because you trust all who wrote them.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help=LIVE)] = False,
) -> None:
    """Grade what a class handed in: a table, a CSV file, a gradebook, and feedback for each student."""
    from helpers.grading import batch

    run = _live(exercise) if live else None
    grading = course_root() / "grading"
    print(f"Grading {exercise}; each submission takes {'minutes' if run else 'some seconds'} …", flush=True)
    result = batch.grade(
        exercise, submissions or grading / "submitted", roster=roster, trust=trust, live=run, on_row=_show_row
    )
    graded = sum(row.score is not None for row in result.rows)
    print(f"{result}\n\n{graded} of {len(result.rows)} graded")
    print(f"✔ the table: {_shown(grading / exercise)}.csv")
    if graded:
        print(f"✔ feedback:  {_shown(grading / 'feedback')}/STUDENT/{exercise}/{exercise}.html")


def _live(exercise: str) -> batch.Live | None:
    """What starts answers on hosts of this machine; None, and a sentence, where no question asks for that."""
    from helpers.grading import batch
    from helpers.grading.check import KUBERNETES

    if not batch.is_live(exercise):
        print(f"– No question of {exercise} is about a running cluster: --live changes nothing.")
        return None
    if batch.runs_on(exercise) == KUBERNETES:
        from helpers.cluster import tryout as runner
    else:
        from helpers.rayhost import shape as runner
    runner.require_memory()
    return runner.run_apart


def _show_row(row: batch.Row, number: int, count: int) -> None:
    score = "✘ not graded" if row.score is None else f"{row.score:g} of {row.max_score:g}"
    print(f"{number:>{len(str(count))}}/{count}  {row.student}  {score}", flush=True)


# ---- manifests -------------------------------------------------------------------------------------------------------


@app.command()
def explain(
    file: Annotated[str, typer.Argument(help="A YAML file; - for standard input.")],
    ray_version: Annotated[
        str, typer.Option(help="What the images run; left away: what they say, or the course's.")
    ] = "",
    kuberay_version: Annotated[str, typer.Option(help="Of the operator; left away: the course's.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a manifest means: its Pods, each `ray start`, who counts what, and what is wrong with it."""
    from helpers.observe import explain as meaning

    said = meaning.explain(meaning.text_of(Path(file)), ray_version, kuberay_version)
    print(json.dumps(said.as_dict(), indent=2, default=str) if as_json else said)
    if not said.is_right:
        raise typer.Exit(1)


@app.command()
def plan(
    file: Annotated[
        str, typer.Argument(help="A file with one RayCluster, RayJob or RayService; - for standard input.")
    ],
    demand: Annotated[
        list[str] | None,
        typer.Option(help="What waits, such as '8×{GPU:1}', 8x{GPU:1} or {CPU:1,memory:4Gi}; may be given again."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
) -> None:
    """Show what Ray's autoscaler would launch for a demand, and what stays unmet and why; nothing is started."""
    from helpers.model import planner
    from helpers.observe.explain import text_of

    made = planner.plan(text_of(Path(file)), demand or [])
    print(json.dumps(made.data(), indent=2, ensure_ascii=False) if as_json else made)


# ---- the cluster -----------------------------------------------------------------------------------------------------

BACKEND = typer.Option(
    "--backend", help="embedded, kind or existing; left away: as COURSE_BACKEND says, or the best of this machine."
)


@app.command()
def up(
    backend: Annotated[str, BACKEND] = "",
    image: Annotated[
        str, typer.Option(help="For kind: the image of its Kubernetes nodes, such as one of your own mirror.")
    ] = "",
    operator: Annotated[
        str,
        typer.Option(help="For kind: how KubeRay comes, by helm or by manifests; left away: helm, if it can be had."),
    ] = "",
) -> None:
    """Bring a cluster up: Kubernetes, and KubeRay. The lessons do so by themselves."""
    if operator not in ("", "helm", "manifests"):
        raise CourseError(f'KubeRay cannot come by "{operator}".', "Use `--operator helm` or `--operator manifests`.")
    os.environ |= {
        name: value for name, value in (("COURSE_KIND_IMAGE", image), ("COURSE_OPERATOR", operator)) if value
    }
    choice = _choice(backend)
    print(f"The backend is {choice.backend.name}, because {choice.why}.", flush=True)
    _print(choice.backend.up())


@app.command()
def status(backend: Annotated[str, BACKEND] = "") -> None:
    """Show what of the cluster runs."""
    _print(_choice(backend).backend.status())


@app.command()
def logs(
    component: Annotated[
        str,
        typer.Argument(
            help="As in `course status`, such as `etcd` or `cpu-a.kubelet`; on kind `course-worker.kubelet`."
        ),
    ],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is written from now on.")] = False,
    backend: Annotated[str, BACKEND] = "",
) -> None:
    """Show the log of a component of the cluster."""
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in _choice(backend).backend.logs(component, follow):
            print(line, flush=follow)


@app.command()
def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Also remove all that the cluster keeps.")] = False,
    backend: Annotated[str, BACKEND] = "",
) -> None:
    """Stop the cluster; the next `course up` finds the same objects."""
    print(_choice(backend).backend.down(wipe))


@app.command()
def why(
    target: Annotated[
        str, typer.Argument(help="As kubectl names it, such as `raycluster/demo`; of a dump, it may be left away.")
    ] = "",
    dump: Annotated[
        Path | None,
        typer.Option("--from", help="A saved `kubectl get … -o yaml` in place of the cluster that runs."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where it is; left away, wherever there is one of that name.")
    ] = "",
    backend: Annotated[str, BACKEND] = "",
) -> None:
    """Say why an object does not move, or does not shrink: one cause, what shows it, and what mends it."""
    import json

    from helpers.observe import diagnose, snapshot

    told = diagnose.why(snapshot.from_file(dump), target) if dump else _why_live(target, namespace, backend)
    print(json.dumps(told.as_dict(), indent=2, ensure_ascii=False) if json_ else told)


def _why_live(target: str, namespace: str, backend: str) -> Diagnosis:
    from helpers.kube import Kube
    from helpers.observe import diagnose, live

    if not target:
        raise CourseError("Nothing is named.", "Name it, such as `course why raycluster/demo`.")
    found = _choice(backend).backend
    if not found.is_running():
        raise CourseError("No cluster runs.", "Run `course up`, or hand a dump over by `--from dump.yaml`.")
    kube = Kube(found.kubeconfig)
    return diagnose.why(live.snapshot_of(kube, namespace or live.namespace_of(kube, target), target), target)


def _choice(backend: str) -> Choice:
    """The backend that is named, else the one that a lesson would get."""
    from helpers.cluster.backend import choose

    if backend:
        os.environ["COURSE_BACKEND"] = backend
    return choose(())


def _print(shown: object) -> None:
    from rich.console import Console

    Console().print(shown)


# ---- the embedded cluster's programs ---------------------------------------------------------------------------------

tools = typer.Typer(
    help="The programs of the embedded cluster: build them, list them, hand them on.", no_args_is_help=True
)
app.add_typer(tools, name="tools")
FOR_TESTS = typer.Option("--tests", help="Also what only tests need.")


@tools.command("build")
def tools_build(tests: Annotated[bool, FOR_TESTS] = False) -> None:
    """Build what is not built yet, from pinned Go modules: once, in 10 to 20 minutes. Interrupted, it goes on later."""
    from helpers.cluster.embedded.tools import build

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Go is ended too
    try:
        build.build(tests)
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to go on.", file=sys.stderr)
        raise typer.Exit(130) from None
    print("✔ All programs are built; `course tools list` shows them.")


@tools.command("list")
def tools_list() -> None:
    """Show each program, its version, and where it is."""
    from helpers.cluster.embedded.tools import build, store

    print(*store.overview(), sep="\n")
    at_work = build.running()
    if at_work:
        print(f"A build is at work: {at_work}; its log: {build.log_file()}")


@tools.command("check")
def tools_check(
    write: Annotated[
        bool, typer.Option("--write", help="Make go.mod and go.sum say what helpers/versions.py says.")
    ] = False,
) -> None:
    """Compare go.mod and go.sum with the pins of the course, and what is built with its checksums."""
    from helpers.cluster.embedded.tools import check

    if write:
        changed = check.write()
        print("\n".join(f"✔ written: tools/{name}/go.mod and go.sum" for name in changed) or "✔ all are up to date")
        return
    wrong = check.check()
    if wrong:
        print(*(f"✘ {line}" for line in wrong), sep="\n")
        raise typer.Exit(1)
    print("✔ go.mod, go.sum and helpers/versions.py say the same, and what is built is as it was built")


@tools.command("pack")
def tools_pack(
    file: Annotated[Path, typer.Argument(help="Such as tools.tar.")],
) -> None:
    """Write what is built into one archive, for others of your class."""
    from helpers.cluster.embedded.tools import archive

    packed = archive.pack(file)
    print(f"✔ {file}: {', '.join(packed)}; {file.stat().st_size / 1024**2:.0f} MiB")


@tools.command("unpack")
def tools_unpack(file: Annotated[Path, typer.Argument(help="What `course tools pack` wrote.")]) -> None:
    """Use the programs that somebody else has built."""
    from helpers.cluster.embedded.tools import archive

    print(f"✔ unpacked: {', '.join(archive.unpack(file))}")


# ---- tests -----------------------------------------------------------------------------------------------------------


@app.command()
def test() -> None:
    """Run all tests: unit, contract, live, browser."""
    with _tools_for_tests():
        run_stages([stage for stage in STAGES if stage != "soak"])


@app.command()
def fast() -> None:
    """Run the tests that need no cluster: unit and contract."""
    run_stages(["unit", "contract"])


@app.command()
def live(backend: Annotated[str, typer.Option(help="Another than embedded: those that hold for any.")] = "") -> None:
    """Run the tests against real Ray processes and real clusters."""
    os.environ["COURSE_BACKEND"] = backend or "embedded"
    with _tools_for_tests():
        run_stages(["live"])


@app.command()
def soak() -> None:
    """Run what takes hours: many Pods, hundreds of kills, and the live tests without root."""
    os.environ["COURSE_SOAK"] = "1"  # some tests then do more of the same
    with _tools_for_tests():
        run_stages(["live", "browser", "soak"])


@contextlib.contextmanager
def _tools_for_tests() -> Iterator[None]:
    """Build what the live tests need from the first minute on; the unit and contract tests run meanwhile."""
    from helpers.cluster.embedded.tools import build

    wanted = sys.platform == "linux" and _tests_embedded()
    process = build.start_in_background(tests=True) if wanted else None
    try:
        yield
    finally:
        if process and process.poll() is None:
            process.terminate()
            process.wait()


def _tests_embedded() -> bool:
    return os.environ.get("COURSE_BACKEND", "embedded") == "embedded"


def _wait_for_tools() -> None:
    """Let the build come to its end, or say why there is none: the tests that need it then fail by themselves."""
    from helpers.cluster.embedded.tools import build

    try:
        build.build(tests=True)
    except CourseError as error:
        print(f"✘ {error.what}\n  → {error.fix}", flush=True)


@app.command()
def bench() -> None:
    """Run the paired timings in bench/."""
    scripts = sorted((course_root() / "bench").glob("[!_]*.py"))
    if not scripts:
        raise CourseError("There is nothing in bench/ to run.", "Use a whole copy of the course.")
    failed = [
        script.name for script in scripts if subprocess.call([sys.executable, str(script)], cwd=course_root()) != 0
    ]
    if failed:
        raise CourseError(f"Not met: {', '.join(failed)}.", "Each says above what it measured and what it expected.")


@dataclass
class Outcome:
    """What the tests of one or more stages came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by test

    def add(self, other: Outcome) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds.update(other.seconds)


def run_stages(stages: list[str]) -> None:
    """Run the stages that this copy has, all of them even when one fails, and end with one line of counts."""
    total = Outcome()
    for stage in stages:
        if (course_root() / "tests" / stage).is_dir():
            print(f"\n── {stage}: {STAGES[stage]} " + "─" * 60, flush=True)
            if stage in ("live", "soak") and _tests_embedded():
                _wait_for_tools()
            total.add(run_stage(stage))
        else:
            print(f"\n– {stage}: there are no such tests in this edition", flush=True)
    slowest = sorted(total.seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    print("\nThe slowest:", *(f"{seconds:8.1f} s  {name}" for name, seconds in slowest), sep="\n")
    print(f"\n{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    if total.failed or not total.passed:
        raise typer.Exit(1)


def run_stage(stage: str) -> Outcome:
    """Run one folder of tests by pytest, in a process of its own."""
    root = course_root()
    report = root / "build" / "tests" / f"{stage}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(root / "tests" / stage)]
    code = subprocess.call(pytest, cwd=root)
    outcome = read_report(report) if report.exists() else Outcome()
    if code != 0 and not outcome.failed:
        # nothing collected, or pytest itself broke: without a failed test this would look green
        print(f"✘ the stage {stage} ended with pytest's exit code {code}, which counts as one failure")
        outcome.failed += 1
    return outcome


def read_report(report: Path) -> Outcome:
    """Count a JUnit XML report of pytest. A test with an error in setup or teardown counts as failed."""
    outcome = Outcome()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcome.failed += 1
        elif "skipped" in kinds:
            outcome.skipped += 1
        else:
            outcome.passed += 1
        outcome.seconds[f"{case.get('classname')}::{case.get('name')}"] = float(case.get("time", 0))
    return outcome


if __name__ == "__main__":
    main()
