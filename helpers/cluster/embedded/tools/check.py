"""`course tools check`: do go.mod, go.sum and helpers/versions.py say the same, and are the builds as they were made?

Kubernetes asks for its own parts (`k8s.io/api` and others) in version v0.0.0, which exists nowhere; whoever builds it
has to say which versions are meant: v0.36.3 for Kubernetes v1.36.3. Those replacements are made here, from what the
go.mod of Kubernetes itself asks for.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from helpers import versions
from helpers.cluster.embedded.tools import golang, store, table
from helpers.cluster.embedded.tools.golang import Go
from helpers.cluster.embedded.tools.table import Family
from helpers.errors import CourseError

_REQUIRE = re.compile(r"^(?:require )?\t?([\w.~/-]+\.[\w.~/-]+) (v\S+)(?: // indirect)?$", re.M)
_REPLACE = re.compile(r"^(?:replace )?\t?(\S+) => (\S+) (v\S+)$", re.M)


def check() -> list[str]:
    """What is wrong, one sentence each; none if all is well.

    The replacements are only looked at where there is a Go that has, or can fetch, the go.mod of Kubernetes.
    """
    wrong = [line for family in table.FAMILIES for line in check_pins(family)]
    go = golang.at_hand()
    if go:
        wrong += [line for family in table.FAMILIES for line in check_replacements(family, go)]
    return wrong + [
        f"{path} has changed since it was built: run `course tools build`."
        for family in table.FAMILIES
        for path in store.wrong_checksums(family)
    ]


def check_pins(family: Family) -> list[str]:
    """The version of the module, Go's version, and whether go.sum knows every module."""
    text = (family.folder / "go.mod").read_text()
    wrong, required = [], dict(_REQUIRE.findall(text))
    pinned = required.get(family.module)
    if pinned != f"v{family.version}":
        wrong.append(
            f"{family.name}/go.mod asks for {family.module} {pinned}, helpers/versions.py for v{family.version}."
        )
    go = re.search(r"^go (\S+)$", text, re.M)
    if not go or golang.numbers(go[1]) > golang.numbers(versions.GO_MIN):
        wrong.append(f"{family.name}/go.mod asks for Go {go and go[1]}, helpers/versions.py for {versions.GO_MIN}.")
    required |= {old: version for old, _, version in _REPLACE.findall(text) if old in required}
    sums = (family.folder / "go.sum").read_text()
    known = set(re.findall(r"^(\S+ v\S+?)/go\.mod h1:", sums, re.M))
    missing = [f"{module} {version}" for module, version in required.items() if f"{module} {version}" not in known]
    if missing:
        wrong.append(
            f"{family.name}/go.sum does not know {', '.join(missing[:3])}: run `go mod tidy` in {family.folder}."
        )
    return wrong


def check_replacements(family: Family, go: Go) -> list[str]:
    """Whether a family that is built from Kubernetes itself replaces what that asks for, and nothing else."""
    if family.module != "k8s.io/kubernetes":
        return []
    wanted = replacements(_go_mod_of(family, go), family.version)
    found = {
        old: version for old, new, version in _REPLACE.findall((family.folder / "go.mod").read_text()) if old == new
    }
    if wanted == found:
        return []
    differ = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    return [f"{family.name}/go.mod does not replace as Kubernetes {family.version} asks: {', '.join(differ)}: "
            "run `course tools check --write`."]  # fmt: skip


def replacements(go_mod: str, version: str) -> dict[str, str]:
    """What a go.mod asks for in version v0.0.0, and the version that is meant: `{"k8s.io/api": "v0.36.3"}`."""
    meant = "v0" + version[version.index(".") :]
    return {module: meant for module, asked in _REQUIRE.findall(go_mod) if asked == "v0.0.0"}


def write() -> list[str]:
    """Make go.mod and go.sum of every family say what helpers/versions.py says. Needs a network.

    Returns:
        The names of the families whose files have changed.

    Raises:
        CourseError: without Go, or if Go fails.
    """
    go, changed = golang.find(), []
    for family in table.FAMILIES:
        files = [family.folder / "go.mod", family.folder / "go.sum"]
        before = [file.read_text() for file in files]
        _write(family, go)
        if before != [file.read_text() for file in files]:
            changed.append(family.name)
    return changed


def _write(family: Family, go: Go) -> None:
    edit = [f"-require={family.module}@v{family.version}"]
    if family.module == "k8s.io/kubernetes":
        text = (family.folder / "go.mod").read_text()
        wanted = replacements(_go_mod_of(family, go), family.version)
        edit += [f"-dropreplace={old}" for old, _, _ in _REPLACE.findall(text)]
        edit += [f"-replace={module}={module}@{version}" for module, version in wanted.items()]
    _run(go, family, "mod", "edit", *edit)
    _run(go, family, "mod", "tidy")


def _go_mod_of(family: Family, go: Go) -> str:
    said = _run(go, family, "list", "-m", "-f", "{{.GoMod}}", f"{family.module}@v{family.version}")
    return Path(said.strip()).read_text()


def _run(go: Go, family: Family, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        environment = go.environment(Path(temporary)) | {"GOFLAGS": "-mod=mod"}
        done = subprocess.run(
            [go.command, *arguments],
            cwd=family.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CourseError(
            f"`go {' '.join(arguments[:2])}` fails for {family.name}: {last}.", "See to it, and try again."
        )
    return done.stdout
