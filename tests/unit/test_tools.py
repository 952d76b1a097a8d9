"""The programs of the embedded cluster: built, found, packed and checked, with a very small program."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import versions
from helpers.cluster.embedded import tools
from helpers.cluster.embedded.tools import archive, build, check, golang, store, table
from helpers.cluster.embedded.tools.table import Family
from helpers.errors import CourseError
from tests.hello import HELLO, MAIN, fake, make_course, needs_go, runs


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    return make_course(tmp_path, monkeypatch)


@pytest.fixture
def built(hello: Family) -> Path:
    """The small program, put in place without a Go."""
    part = store.home(hello).with_suffix(".part")
    part.mkdir(parents=True)
    (part / "hello").write_text("#!/bin/sh\necho hello 1.2.3\n")
    (part / "hello").chmod(0o755)
    store.put_in_place(part, hello, "1.26.8")
    return store.home(hello) / "hello"


# ---- building --------------------------------------------------------------------------------------------------------


@needs_go
def test_built_once_with_its_version_and_found(hello: Family, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(CourseError, match="hello is not built yet.*course tools build"):
        tools.binary("hello")
    assert build.build() == ["hello"]
    assert runs(tools.binary("hello")) == "hello 1.2.3"
    assert "✔ hello 1.2.3" in capsys.readouterr().out
    assert build.build() == [] and capsys.readouterr().out == ""
    left = sorted(path.name for path in store.root().rglob("*"))
    assert left == ["hello", f"hello-{hello.key()}", "lock", "manifest.json"]
    assert check.check() == ["hello/go.mod asks for example.com/hello None, helpers/versions.py for v1.2.3."]


@needs_go
def test_a_program_that_does_not_compile(hello: Family) -> None:
    (hello.folder / "main.go").write_text(MAIN.replace("print", "prnt"))
    with pytest.raises(CourseError, match=r"hello could not be built: .*undefined: prnt.*tools-build.log"):
        build.build()
    assert "undefined: prnt" in build.log_file().read_text()
    with pytest.raises(CourseError):
        tools.binary("hello")  # nothing half-built is used
    (hello.folder / "main.go").write_text(MAIN)
    assert build.build() == ["hello"]


def test_nothing_to_build_starts_nothing(built: Path) -> None:
    assert build.start_in_background() is None and build.build() == [] and build.running() == ""


def test_too_little_space(hello: Family, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go = SimpleNamespace(caches=lambda: (tmp_path / "a", tmp_path / "b"))
    monkeypatch.setattr(build.shutil, "disk_usage", lambda place: SimpleNamespace(free=3 * build.GIB))
    with pytest.raises(CourseError, match=r"takes about 10 GiB of disk space, and 3\.0 GiB are free.*XDG_CACHE_HOME"):
        build._check_space(go, build.SPACE_BYTES)
    (tmp_path / "b").mkdir()
    with open(tmp_path / "b" / "compiled", "wb") as file:
        file.truncate(8 * build.GIB)  # an earlier build has used it already
    build._check_space(go, build.SPACE_BYTES)


@pytest.mark.parametrize(
    "said, why",
    [
        ("a: write /tmp/x: no space left on device", "the disk is full"),
        ('Get "https://p/": dial tcp: lookup p: no such host', "the Go module proxy cannot be reached"),
        ("module lookup disabled by GOPROXY=off", "the Go module proxy cannot be reached"),
        (
            "tls: failed to verify certificate: x509: unknown authority",
            "certificate of the module proxy is not trusted",
        ),
        ("verifying x@v1: checksum mismatch", "not the one that go.sum names"),
        ("missing go.sum entry for module", "go.mod and go.sum do not fit together"),
        ("k8s.io/api: /usr/lib/go/compile: signal: killed", "memory ran out"),
        ("something new", "something new"),
        ("", "no reason given"),
    ],
)
def test_what_go_says_is_one_sentence(said: str, why: str) -> None:
    error = build.explain(said, HELLO, Path("/log"))
    assert why in error.what and error.what.count(". ") == 0 and error.fix


@pytest.fixture
def asked_for(hello: Family, monkeypatch: pytest.MonkeyPatch) -> Family:
    """The small program, as one that is built only when it is asked for."""
    family = replace(hello, on_request=True)
    monkeypatch.setattr(table, "FAMILIES", (family,))
    return family


def test_what_is_built_on_request_is_not_missed(asked_for: Family, tmp_path: Path) -> None:
    assert build.build() == [] and build.build(tests=True) == []
    assert build.build_one("another") == []
    assert str(store.overview()[0]).endswith("not built  (built when it is asked for)")
    assert archive.pack(tmp_path / "a.tar") == archive.unpack(tmp_path / "a.tar") == []


@needs_go
def test_built_when_it_is_asked_for(asked_for: Family, tmp_path: Path) -> None:
    assert build.build_one("hello") == ["hello"]
    assert runs(tools.binary("hello")) == "hello 1.2.3"
    assert build.build_one("hello") == []
    assert archive.pack(tmp_path / "a.tar") == archive.unpack(tmp_path / "a.tar") == ["hello"]
    rewrite(tmp_path / "a.tar", other_key)
    with pytest.raises(CourseError, match="another edition of the course: its hello is not"):
        archive.unpack(tmp_path / "a.tar")


def test_little_space_is_enough_for_one(asked_for: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(build.golang, "find", lambda: None)
    monkeypatch.setattr(build, "_check_space", lambda go, space_bytes: asked.append(space_bytes))
    monkeypatch.setattr(build, "_build_all", lambda jobs, line: None)
    build.build_one("hello")
    assert asked == [build.ONE_BYTES]


# ---- Go --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, found",
    [
        ("go1.26.6", True), ("go1.26.10", True), ("go1.27.0", True),
        ("go1.26.5", False), ("go1.9", False), ("devel go1.28-abc", False), ("", False),
    ],
)  # fmt: skip
def test_a_go_that_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, found: bool) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake(tmp_path / "bin", monkeypatch, "go", f"echo '{said}'")
    assert bool(golang.at_hand()) is found


def test_gos_own_environment_cannot_change_what_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"GOOS": "windows", "GOFLAGS": "-race", "GOPROXY": "https://mirror", "GOWORK": "/x"}.items():
        monkeypatch.setenv(name, value)
    mine = golang.Go(Path("go"), "1.26.6", is_ours=False).environment(tmp_path)
    assert "GOOS" not in mine and mine["GOPROXY"] == "https://mirror" and mine["GOTOOLCHAIN"] == "local"
    assert (
        mine["GOWORK"] == "off" and "-race" not in mine["GOFLAGS"] and "GOPATH" not in mine.keys() - os.environ.keys()
    )
    ours = golang.Go(Path("go"), "1.26.6", is_ours=True).environment(tmp_path)
    assert all("ray-course" in ours[name] for name in ("GOPATH", "GOCACHE", "GOMODCACHE"))


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_a_damaged_program_is_not_used_and_built_again(built: Path) -> None:
    assert tools.binary("hello") == built
    built.write_text("half")
    with pytest.raises(CourseError, match="hello is damaged.*course tools build"):
        tools.binary("hello")
    assert build._missing(False) == [HELLO]


def test_what_has_changed_at_equal_size_is_seen_by_check(built: Path) -> None:
    text = built.read_text()
    built.write_text(text.replace("1.2.3", "6.6.6"))
    assert tools.binary("hello") == built
    assert f"{built} has changed since it was built: run `course tools build`." in check.check()


def test_the_pinned_version_on_path_comes_first(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = fake(tmp_path / "bin", monkeypatch, "hello", "[ $1 = --version ] && echo hello 1.2.3 of theirs")
    assert tools.binary("hello") == theirs
    assert str(store.overview()[0]).startswith("✔ hello                    1.2.3    PATH")


@pytest.mark.parametrize("script", ["echo hello 1.2.4", "echo hello v1.2.3", "echo hello", "exit 1", "exec sleep 1000"])
def test_another_version_on_path_is_passed_over(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(store, "ANSWER_TIMEOUT_S", 0.5)
    fake(tmp_path / "bin", monkeypatch, "hello", script)
    assert tools.binary("hello") == built


def test_the_kubelet_is_always_ours() -> None:
    _, kubelet = table.find("kubelet")
    assert not kubelet.ask
    assert all(program.ask for family in table.FAMILIES[:3] for program in family.programs if program is not kubelet)


@pytest.mark.parametrize("change", ["main.go", "more.go", "go.sum", "go.mod", "Go", "stamp"])
def test_the_key_changes_with_what_is_built(hello: Family, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    before = hello.key()
    (hello.folder / "main_test.go").write_text("package main\n")  # a test is not part of the program
    assert hello.key() == before
    if change == "Go":
        monkeypatch.setattr(versions, "GO_MIN", "1.99.0")
    elif change == "stamp":
        hello = Family(hello.name, hello.module, hello.version, hello.programs)
    else:
        with open(hello.folder / change, "a") as file:
            file.write("\n// more\n")
    assert hello.key() != before


@needs_go
def test_files_of_the_module_lie_beside_the_program(
    hello: Family, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (hello.folder / "config").mkdir()
    (hello.folder / "config" / "a.yaml").write_text("a: 1\n")
    more = replace(hello, manifests=("config/a.yaml",))
    assert more.key() != hello.key()
    monkeypatch.setattr(table, "FAMILIES", (more,))
    assert build.build() == ["hello"]
    archive.pack(tmp_path / "a.tar")
    shutil.rmtree(store.root())
    assert archive.unpack(tmp_path / "a.tar") == ["hello"]
    beside = store.home(more) / "a.yaml"
    assert beside.read_text() == "a: 1\n" and not store.lacking(more)
    beside.unlink()
    assert store.lacking(more) == list(more.programs)


def test_an_unknown_program() -> None:
    with pytest.raises(KeyError):
        tools.binary("no-such-program")


def test_elsewhere_than_on_linux(hello: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table.sys, "platform", "darwin")
    with pytest.raises(CourseError, match="runs on Linux, x86-64 or ARM64"):
        build.build()


def test_what_others_left_unfinished_is_removed_and_what_they_finished_is_kept(built: Path) -> None:
    for name in ("hello-0123.part", "hello-0123", f"{built.parent.name}.part"):
        (store.root() / name).mkdir()
    store.remove_unfinished()
    left = {path.name for path in store.root().iterdir()}
    assert left == {"hello-0123", f"{built.parent.name}.part", built.parent.name}


# ---- packing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def packed(built: Path, tmp_path: Path) -> Path:
    """An archive of the small program; the cache is empty again."""
    file = tmp_path / "my tools.tar"
    assert archive.pack(file) == ["hello"]
    shutil.rmtree(store.root())
    return file


def test_packed_and_unpacked(packed: Path) -> None:
    assert archive.unpack(packed) == ["hello"]
    assert runs(tools.binary("hello")) == "hello 1.2.3\n"
    assert store.manifest(store.home(HELLO))["go"] == "1.26.8"
    assert archive.unpack(packed) == ["hello"]  # again, over what is there
    with tarfile.open(packed) as tar:
        assert {(member.name, member.uid, member.mtime) for member in tar} == {
            ("manifest.json", 0, 0),
            ("hello/hello", 0, 0),
        }


def test_what_is_not_built_is_not_packed(hello: Family, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="hello is not built yet"):
        archive.pack(tmp_path / "a.tar")
    assert not list(tmp_path.glob("a.tar*"))


def test_no_place_for_the_archive(built: Path, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="cannot be written: No such file or directory"):
        archive.pack(tmp_path / "none" / "a.tar")


def rewrite(file: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> None:
    """Change the members of an archive."""
    with tarfile.open(file) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    change(members)
    with tarfile.open(file, "w") as tar:
        for member, data in members:
            member.size = len(data) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(data))


def told(**change: object) -> Callable:
    """A change of what the archive says of itself."""

    def do(members: list) -> None:
        said = json.loads(members[0][1])
        said.update(change)
        members[0] = members[0][0], json.dumps(said).encode()

    return do


def other_key(members: list) -> None:
    members[0] = members[0][0], members[0][1].replace(HELLO.key().encode(), b"0123456789abcdef")


def extra(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable:
    """Puts another member before the program."""

    def do(members: list) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        members.insert(1, (member, b"evil" if kind == tarfile.REGTYPE else b""))

    return do


@pytest.mark.parametrize(
    "change, said",
    [
        (told(platform="linux/s390x"), "was made for linux/s390x; this machine is linux/"),
        (told(families={}), "another edition of the course: its hello is not"),
        (told(families=[]), "no whole archive"),
        (told(format=None), "no whole archive"),
        (other_key, "another edition of the course"),
        (lambda members: members.pop(), "no whole archive"),
        (lambda members: members.pop(0), "no whole archive"),
        (lambda members: members.reverse(), "no whole archive"),
        (lambda members: members.append(members[1]), "no program of the course: 'hello/hello'"),
        (lambda members: members.__setitem__(1, (members[1][0], b"something else")), "no whole archive"),
        (extra("../../../evil"), "no program of the course: '../../../evil'"),
        (extra("/tmp/evil"), "no program of the course: '/tmp/evil'"),
        (extra("hello/manifest.json"), "no program of the course"),
        (extra("hello/hello", tarfile.SYMTYPE, "/etc/passwd"), "no program of the course"),
        (extra("hello/hello", tarfile.LNKTYPE, "/etc/passwd"), "no program of the course"),
        (extra("hello/hello", tarfile.FIFOTYPE), "no program of the course"),
    ],
)
def test_an_archive_that_is_not_right(packed: Path, change: Callable, said: str) -> None:
    rewrite(packed, change)
    before = set(packed.parent.rglob("*"))
    with pytest.raises(CourseError, match=said):
        archive.unpack(packed)
    after = {path for path in packed.parent.rglob("*") if path not in before}
    assert {path.name for path in after} <= {"my cache", "ray-course", "tools", "lock"}


@pytest.mark.parametrize("keep", [0, 100, 600, 1550])
def test_an_archive_that_was_cut_off(packed: Path, keep: int) -> None:
    packed.write_bytes(packed.read_bytes()[:keep])
    with pytest.raises(CourseError, match="no whole archive of `course tools pack`"):
        archive.unpack(packed)


def test_an_archive_that_is_not_there(hello: Family, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="cannot be unpacked: No such file or directory"):
        archive.unpack(tmp_path / "none.tar")


def test_a_damaged_archive_leaves_the_old_programs(packed: Path) -> None:
    archive.unpack(packed)
    rewrite(packed, lambda members: members.pop())
    with pytest.raises(CourseError):
        archive.unpack(packed)
    assert runs(tools.binary("hello")) == "hello 1.2.3\n"


def test_nothing_is_unpacked_while_a_build_is_at_work(packed: Path) -> None:
    with store.lock(), pytest.raises(CourseError, match="`course tools build` is at work"):
        archive.unpack(packed)


# ---- checking --------------------------------------------------------------------------------------------------------

GO_MOD = """module example.com/hello

go 1.26.0

replace k8s.io/api => k8s.io/api v0.36.3

require example.com/hello v1.2.3

require (
\tk8s.io/api v0.36.3
\texample.com/other v2.0.0+incompatible // indirect
)
"""
GO_SUM = """example.com/hello v1.2.3/go.mod h1:a=
example.com/other v2.0.0+incompatible/go.mod h1:b=
k8s.io/api v0.36.3/go.mod h1:c=
"""


def test_pins_that_fit(hello: Family) -> None:
    (hello.folder / "go.mod").write_text(GO_MOD)
    (hello.folder / "go.sum").write_text(GO_SUM)
    assert check.check_pins(hello) == []


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("hello v1.2.3", "hello v1.2.4", "asks for example.com/hello v1.2.4, helpers/versions.py for v1.2.3"),
        ("go 1.26.0", "go 1.99.0", f"asks for Go 1.99.0, helpers/versions.py for {versions.GO_MIN}"),
        ("api => k8s.io/api v0.36.3", "api => k8s.io/api v0.36.4", "go.sum does not know k8s.io/api v0.36.4"),
        ("other v2.0.0", "other v2.0.1", "go.sum does not know example.com/other v2.0.1+incompatible"),
    ],
)
def test_pins_that_do_not_fit(hello: Family, old: str, new: str, said: str) -> None:
    (hello.folder / "go.mod").write_text(GO_MOD.replace(old, new))
    (hello.folder / "go.sum").write_text(GO_SUM)
    assert any(said in line for line in check.check_pins(hello))


def test_replacements_follow_what_kubernetes_asks_for() -> None:
    asked = "require (\n\tk8s.io/api v0.0.0\n\tk8s.io/streaming v0.0.0 // indirect\n\tk8s.io/klog/v2 v2.140.0\n)\n"
    assert check.replacements(asked, "1.36.3") == {"k8s.io/api": "v0.36.3", "k8s.io/streaming": "v0.36.3"}
