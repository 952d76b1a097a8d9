"""What this machine can do, what each gap costs a learner, and the command that closes it."""

from __future__ import annotations

import html
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import lessons, state, versions
from helpers.proc import Answer, ask

if TYPE_CHECKING:
    from rich.table import Table

GIB = 1024**3
PROBE_TIMEOUT_S = 2.0  # an engine or a driver that takes longer to say who it is does not answer
RAY_DISK_LIMIT = 95  # percent; on a fuller disk Ray creates no objects that it would have to spill


DISK_BYTES = GIB // 2  # logs and spilled objects of a lesson, about
SHM_BYTES = GIB // 2  # object stores of three small Ray nodes


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    Attributes:
        name: what was checked.
        found: what is so on this machine.
        ok: whether nothing is missing.
        cost: what the gap costs; for a row without a gap, a remark or nothing.
        fix: the command that closes the gap, or nothing.
        for_learners: whether a learner needs it; otherwise only who writes or tests the course does.
    """

    name: str
    found: str
    ok: bool
    cost: str = ""
    fix: str = ""
    for_learners: bool = True

    @property
    def state(self) -> str:
        return "✔ ok" if self.ok else "✘ gap"


@dataclass(frozen=True)
class Report:
    """All rows; a table in a terminal, in a notebook, and as plain text."""

    rows: dict[str, Row]

    HEADS = ("checked", "found", "state", "what it means", "what closes the gap")

    def __str__(self) -> str:
        return "\n".join(_as_text(row) for row in self.rows.values())

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(title="What this machine can do", title_justify="left", show_lines=True)
        for head in self.HEADS:
            # a command is folded, never cut, so that it can be copied
            table.add_column(head, no_wrap=head == "state", overflow="fold")
        for row in self.rows.values():
            table.add_row(*map(_escape, _cells(row)), style=None if row.ok else "bold")
        return table

    def _repr_html_(self) -> str:
        heads = "".join(f'<th scope="col">{head}</th>' for head in self.HEADS)
        body = "".join(_html_row(row) for row in self.rows.values())
        return f"<table><caption>What this machine can do</caption><tr>{heads}</tr>{body}</table>"

    def short(self) -> str:
        """One line, and one more for each gap that a learner would notice."""
        asked = [row for row in self.rows.values() if row.for_learners]
        gaps = [row for row in asked if not row.ok]
        first = f"This machine: {len(asked) - len(gaps)} of {len(asked)} checks ok (`course doctor` shows all)."
        return "\n".join([first, *map(_as_text, gaps)])


def _cells(row: Row) -> tuple[str, ...]:
    return row.name, row.found, row.state, row.cost, row.fix


def _as_text(row: Row) -> str:
    line = f"{row.state}  {row.name}: {row.found}"
    line += f"; {row.cost}" if row.cost else ""
    return line + (f"\n       → {row.fix}" if row.fix else "")


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _html_row(row: Row) -> str:
    name, *rest = (html.escape(cell) for cell in _cells(row))
    style = 'style="text-align: left; overflow-wrap: anywhere"'
    return f'<tr><th scope="row" {style}>{name}</th>' + "".join(f"<td {style}>{cell}</td>" for cell in rest) + "</tr>"


def report() -> Report:
    """Look at this machine. Takes up to about `PROBE_TIMEOUT_S`: the looks are taken side by side."""
    return Report(capabilities())


def capabilities() -> dict[str, Row]:
    """Every row by its key, such as `namespaces`."""
    with ThreadPoolExecutor(len(PROBES)) as pool:
        return dict(zip(PROBES, pool.map(lambda probe: probe(), PROBES.values()), strict=True))


# ---- the probes ------------------------------------------------------------------------------------------------------


def system() -> Row:
    name = "operating system"
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform == "linux":
        return Row(name, found, ok=True)
    return Row(
        name,
        found,
        ok=False,
        cost="Ray calls clusters of several Ray nodes unsupported here, and this course was never run here",
        fix="use a Linux machine or virtual machine (on Windows: `wsl --install`)",
    )


def python() -> Row:
    name = "Python and packages"
    wrong = [f"{package} {there or 'missing'}, not {pin}" for package, pin, there in _pins() if pin != there]
    right_python = platform.python_version_tuple()[:2] == tuple(versions.PYTHON.split("."))
    found = f"Python {platform.python_version()}; " + (", ".join(wrong) or "all pinned packages as pinned")
    if right_python and not wrong:
        return Row(name, found, ok=True)
    return Row(
        name,
        found,
        ok=False,
        cost="what the lessons show was seen with the pinned versions; others may differ",
        fix="`make clean`, then `make lab`",
    )


def python_folder() -> Row:
    has_space = any(character.isspace() for character in sys.prefix)
    return Row(
        "Python's folder",
        sys.prefix,
        ok=not has_space,
        cost="Ray's client server and the workers of `ray job submit` do not start from a path with a space"
        if has_space
        else "",
        fix="`make lab`, which puts the environment where there is none" if has_space else "",
    )


def _pins() -> list[tuple[str, str, str | None]]:
    """For each package of requirements.txt: its name, its pin, and the version that is installed."""
    lines = (state.course_root() / "requirements.txt").read_text().splitlines()
    pins = [line.partition("==") for line in lines if line.strip() and not line.startswith("#")]
    # "ray[default]" is installed as "ray"
    names = [(requirement.partition("[")[0], pin) for requirement, _, pin in pins]
    return [(name, pin, _installed(name)) for name, pin in names]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def memory() -> Row:
    free = memory_available_bytes()
    hungriest = max(lessons.lessons(), key=lambda lesson: lesson.memory_gib)
    need = int(hungriest.memory_gib * GIB)
    return _amount(
        "memory",
        free,
        need,
        cost=f"lesson {hungriest.id} takes about {hungriest.memory_gib:g} GiB; Ray kills tasks when memory runs out",
        fix="close other programs, or give this virtual machine or container more memory",
    )


def memory_available_bytes() -> int:
    """Memory that can still be used: the machine's, or what the container's limit leaves of it."""
    import psutil

    return min([psutil.virtual_memory().available, *_cgroup_memory_left()])


def _cgroup_memory_left() -> list[int]:
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return [int(limit) - int(used)]
    except (OSError, ValueError):  # no cgroup of version 2, or no limit ("max")
        return []


def disk() -> Row:
    import psutil

    places = [_existing(place) for place in (state.course_root(), state.state_dir(), Path(tempfile.gettempdir()))]
    free, percent, place = min(
        (usage.free, usage.percent, str(p)) for p in places for usage in [psutil.disk_usage(str(p))]
    )
    need = DISK_BYTES
    cost = f"a lesson takes about {need / GIB:.1f} GiB for logs and spilled objects"
    fix = f"free some space at {place}"
    if percent < RAY_DISK_LIMIT:
        return _amount("disk", free, need, cost, fix)
    found = f"{free / GIB:.1f} GiB free, but {percent:.0f} % full at {place}"
    return Row(
        "disk", found, ok=False, cost=f"Ray spills no objects to a disk that is over {RAY_DISK_LIMIT} % full", fix=fix
    )


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def shm() -> Row:
    name = "shared memory"
    if sys.platform != "linux":
        return Row(name, "no /dev/shm on this system", ok=True, cost="Ray keeps its object store in a temporary folder")
    free = shutil.disk_usage("/dev/shm").free
    return _amount(
        name,
        free,
        SHM_BYTES,
        cost=f"a lesson keeps up to about {SHM_BYTES / GIB:.1f} GiB of objects there; Ray then uses /tmp, slower",
        fix="`sudo mount -o remount,size=2G /dev/shm`; for a container: `docker run --shm-size=2g …`",
    )


def _amount(name: str, free_bytes: int, need_bytes: int, cost: str, fix: str) -> Row:
    found = f"{free_bytes / GIB:.1f} GiB free"
    return Row(name, found, ok=True) if free_bytes >= need_bytes else Row(name, found, ok=False, cost=cost, fix=fix)


def util_linux() -> Row:
    name = "unshare and nsenter"
    missing = [tool for tool in ("unshare", "nsenter") if not shutil.which(tool)]
    if not missing:
        return Row(name, "both there", ok=True)
    return Row(
        name,
        f"no {' and no '.join(missing)}",
        ok=False,
        cost=SHIFTED_PORTS,
        fix="`sudo apt-get install -y util-linux`" if sys.platform == "linux" else "only Linux has them",
    )


SHIFTED_PORTS = "lesson 01 shows hosts as shifted ports instead of separate hosts"


def namespaces() -> Row:
    name = "network namespaces"
    if sys.platform != "linux" or not shutil.which("unshare"):
        return Row(name, "cannot be tried without `unshare`", ok=False, cost=SHIFTED_PORTS, fix="see the row before")
    from helpers.cluster.embedded.namespaces import try_out

    is_root = os.geteuid() == 0
    refused = try_out(PROBE_TIMEOUT_S)
    if refused is None:
        return Row(name, "allowed, as root" if is_root else "allowed, without root", ok=True)
    why, fix = _why_refused(is_root)
    return Row(name, f"refused: {why or refused}", ok=False, cost=SHIFTED_PORTS, fix=fix)


def _why_refused(is_root: bool, proc_sys: Path = Path("/proc/sys")) -> tuple[str, str]:
    """The setting that forbids namespaces and the command that allows them; the first is empty if no setting does."""
    from helpers.cluster.embedded.namespaces import forbidding

    if found := forbidding(is_root, proc_sys):
        key, forbids, allows = found
        return f"{key} is {forbids}", f"`sudo sysctl -w {key}={allows}`"
    return "", "in a container: start it with `--privileged`; elsewhere ask who runs this machine"


def engine() -> Row:
    name = "container engine"
    there = [tool for tool in ("docker", "podman") if shutil.which(tool)]
    answers = [tool for tool in there if _output([tool, "info"]).ok]
    found = [f"{tool} answers" for tool in answers] or [f"{tool} is there, but does not answer" for tool in there]
    remark = "where one answers, the lessons on Kubernetes, from 03 on, take a kind cluster"
    remark += "; without one, a cluster that needs none" if sys.platform == "linux" else ", and without one none here"
    return Row(name, ", ".join(found) or "none", ok=True, cost=remark)


def gpus() -> Row:
    done = _output(["nvidia-smi", "-L"])
    count = sum(line.startswith("GPU ") for line in done.text.splitlines()) if done.ok else 0
    found = f"{count} by nvidia-smi" if count else "none"
    remark = "nothing here needs one: the lessons declare GPUs to Ray, and say so"
    remark += "; with COURSE_GPUS=real, a new embedded cluster has these in place of fake ones" if count else ""
    return Row("GPUs", found, ok=True, cost=remark)


def sandbox() -> Row:
    found = shutil.which("bwrap")
    return Row(
        "sandbox",
        f"bubblewrap: {found or 'none'}",
        ok=bool(found),
        cost="" if found else "`course grade` refuses what others wrote; `course check` runs your own work without one",
        fix="" if found else "`sudo apt-get install -y bubblewrap`",
        for_learners=False,
    )


def browser() -> Row:
    name = "Chromium"
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found:
        return Row(name, found, ok=True, for_learners=False)
    return Row(
        name,
        "none",
        ok=False,
        cost="nothing for learners: only the browser tests of `make test` are skipped",
        fix="`sudo apt-get install -y chromium`",
        for_learners=False,
    )


def checkout() -> Row:
    return _writable("course's folder", state.course_root(), cost="edits in the notebooks cannot be saved")


def state_directory() -> Row:
    return _writable(
        "state directory",
        state.state_dir(),
        cost="answers and progress cannot be kept",
        other="; or set XDG_STATE_HOME",
    )


def _writable(name: str, folder: Path, cost: str, other: str = "") -> Row:
    """Really write: permissions alone do not show a read-only mount or a full disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        fix = f"`sudo chown -R \"$USER\" '{_existing(folder)}'`{other}"
        return Row(name, f"{folder}: {error.strerror}", ok=False, cost=cost, fix=fix)
    return Row(name, f"{folder} can be written", ok=True)


def progress() -> Row:
    name, path = "progress file", state.progress_path()
    try:
        sound = not path.exists() or isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        sound = False
    if sound:
        return Row(name, f"{path} can be read" if path.exists() else "none yet", ok=True)
    return Row(
        name,
        f"{path} cannot be understood",
        ok=False,
        cost="the course cannot see what you have answered before",
        fix="`course reset --progress` begins anew, and keeps the old file beside it",
    )


# ---- what the embedded cluster takes ---------------------------------------------------------------------------------

NO_CLUSTER = "no Kubernetes by the embedded cluster here; the lessons on Ray alone need none"
LINUX_ONLY = "only Linux has it"


def go() -> Row:
    from helpers.cluster.embedded.tools import golang

    there = golang.at_hand()
    if there:
        return Row(
            "Go", f"{there.version}, {'in the cache of the course' if there.is_ours else there.command}", ok=True
        )
    other = golang.version_of(shutil.which("go"))
    found = f"{other} on PATH, which is too old" if other else "none"
    return Row("Go", found, ok=True, cost="`course tools build` fetches its own (70 MB)")


def tools() -> Row:
    from helpers.cluster.embedded.tools import build, store

    name = "cluster's programs"
    if sys.platform != "linux":
        return Row(name, "cannot run on this system", ok=False, cost=NO_CLUSTER, fix=LINUX_ONLY)
    lacking = [line.name for line in store.overview() if not line.found and not line.remark]
    if not lacking:
        return Row(name, "all are built", ok=True)
    at_work = build.running()
    if at_work:
        return Row(name, f"being built: {at_work}", ok=True, cost="`course tools list` shows how far it is")
    cost = "the embedded cluster cannot start before they are; it takes 10 to 20 minutes, once"
    return Row(name, f"not built: {', '.join(lacking)}", ok=False, cost=cost, fix="`course tools build`")


def nft() -> Row:
    found = shutil.which("nft", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found:
        return Row("nft", found, ok=True)
    fix = "`sudo apt-get install -y nftables`" if sys.platform == "linux" else LINUX_ONLY
    return Row("nft", "none", ok=False, cost=f"Services of a cluster need it: {NO_CLUSTER}", fix=fix)


OVERLAY = (
    'mount -t tmpfs none "$0" && cd "$0" && mkdir a b c d && mount -t overlay none -o lowerdir=a,upperdir=b,workdir=c d'
)


def overlay() -> Row:
    name = "overlay file system"
    if sys.platform != "linux" or not shutil.which("unshare"):
        return Row(name, "cannot be tried without `unshare`", ok=False, cost=NO_CLUSTER, fix="see the rows before")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with tempfile.TemporaryDirectory() as folder:  # covered in a mount namespace that ends at once
        done = _output(["unshare", *user, "--mount", "sh", "-c", OVERLAY, folder])
    if done.ok:
        return Row(name, "can be mounted", ok=True)
    fix = "`sudo modprobe overlay`; without root it takes Linux 5.11 or newer"
    return Row(name, f"refused: {done.text or 'no reason given'}", ok=False, cost=NO_CLUSTER, fix=fix)


def _output(command: list[str]) -> Answer:
    return ask(command, PROBE_TIMEOUT_S)


PROBES: dict[str, Callable[[], Row]] = {
    "system": system,
    "python": python,
    "python_folder": python_folder,
    "memory": memory,
    "disk": disk,
    "shm": shm,
    "util_linux": util_linux,
    "namespaces": namespaces,
    "overlay": overlay,
    "nft": nft,
    "go": go,
    "tools": tools,
    "engine": engine,
    "gpus": gpus,
    "sandbox": sandbox,
    "browser": browser,
    "checkout": checkout,
    "state": state_directory,
    "progress": progress,
}
