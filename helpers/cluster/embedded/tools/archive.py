"""`course tools pack` and `unpack`: one checksummed archive, so that one build serves a whole class.

An archive is a tar file. Its first member is `manifest.json`:

    format    1
    platform  such as "linux/amd64"
    families  {"etcd": {"key": "…", "go": "1.26.8", "files": {"etcd": {"bytes": 27218082, "sha256": "…"}}}}

and then comes each file as `etcd/etcd`. Nothing else may be in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

from helpers.cluster.embedded.tools import store, table
from helpers.cluster.embedded.tools.table import Family
from helpers.errors import CourseError

FORMAT = 1
MANIFEST = "manifest.json"
PIECE = 1024**2


def pack(file: Path) -> list[str]:
    """Write what is built into one archive.

    Returns:
        The names of the families in it. What not every learner needs is in it if it is built.

    Raises:
        CourseError: if a family that learners need is not built, or the file cannot be written.
    """
    built = [family for family in table.FAMILIES if not family.is_extra or not store.lacking(family)]
    sources = {family.name: _files(family) for family in built}
    families = {}
    for family in built:
        files = {name: _facts(path) for name, path in sources[family.name].items()}
        families[family.name] = {"key": family.key(), "go": _go(family), "files": files}
    text = json.dumps({"format": FORMAT, "platform": table.this_platform(), "families": families}, indent=1).encode()
    part = file.with_name(f"{file.name}.part")
    try:
        with tarfile.open(part, "w") as tar:
            _add(tar, MANIFEST, text)
            for name, files in sources.items():
                for path in files.values():
                    tar.add(path, f"{name}/{path.name}", filter=_plain)
        os.replace(part, file)
    except OSError as error:
        raise CourseError(f"{file} cannot be written: {error.strerror}.", "Name a file where there is space.") from None
    finally:
        part.unlink(missing_ok=True)
    return list(families)


def unpack(file: Path) -> list[str]:
    """Put the programs of an archive into the cache, where they are used as if they had been built here.

    Returns:
        The names of the families in it.

    Raises:
        CourseError: if it is no such archive, damaged, or made for another platform or another edition.
    """
    try:
        with tarfile.open(file, "r:*") as tar:
            families = _read_manifest(tar, file)
            with store.lock() as lock:
                if not lock:
                    raise CourseError(
                        "A `course tools build` is at work, which makes the same programs.",
                        "Wait for its end, which `course tools list` shows, or end it; then unpack again.",
                    )
                return _take(tar, families, file)
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(file) from None
    except OSError as error:
        raise CourseError(
            f"{file} cannot be unpacked: {error.strerror or error}.",
            f"See to it that it is there and that {store.root()} has space.",
        ) from None


def _files(family: Family) -> dict[str, Path]:
    files = {program.name: store.binary(program.name) for program in family.programs}
    return files | {name: store.home(family) / name for name in family.others}


def _go(family: Family) -> str:
    return store.manifest(store.home(family)).get("go", "unknown")


def _facts(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "sha256": store.digest(path)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Says nothing of who packed it, or when."""
    plain = tarfile.TarInfo(member.name)
    plain.size, plain.mode = member.size, 0o755
    return plain


def _read_manifest(tar: tarfile.TarFile, file: Path) -> dict[str, dict]:
    first = tar.next()
    if first is None or first.name != MANIFEST or not first.isfile() or first.size > PIECE:
        raise _damaged(file)
    told = json.loads(tar.extractfile(first).read())
    if told["format"] != FORMAT:
        raise _damaged(file)
    if told["platform"] != table.this_platform():
        raise CourseError(
            f"{file} was made for {told['platform']}; this machine is {table.this_platform()}.",
            "Ask for an archive that was packed on a machine of this kind, or run `course tools build`.",
        )
    for family in table.FAMILIES:
        packed = told["families"].get(family.name, {})
        if packed.get("key") != family.key() and (packed or not family.is_extra):
            raise CourseError(
                f"{file} was made by another edition of the course: its {family.name} is not the one that this needs.",
                "Bring both copies of the course to the same edition and pack again, or run `course tools build`.",
            )
    return told["families"]


def _take(tar: tarfile.TarFile, families: dict[str, dict], file: Path) -> list[str]:
    ours = {family.name: family for family in table.FAMILIES}
    parts = {name: store.home(ours[name]).with_suffix(".part-unpacked") for name in families}
    try:
        for name, part in parts.items():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            if set(families[name]["files"]) != set(ours[name].files):
                raise _damaged(file)
        # only names from our own table are ever joined to a path, so that no member can lead out of the folder
        left = {f"{name}/{each}": (name, each) for name in families for each in ours[name].files}
        while member := tar.next():
            if member.name not in left or not member.isfile():
                raise CourseError(
                    f"{file} holds something that is no program of the course: {member.name!r}.",
                    "Do not trust it; ask for another archive, or run `course tools build`.",
                )
            name, each = left.pop(member.name)
            if _copy(tar, member, parts[name] / each) != families[name]["files"][each]["sha256"]:
                raise _damaged(file)
        if left:
            raise _damaged(file)
        for name, part in parts.items():
            store.put_in_place(part, ours[name], families[name]["go"])
    finally:
        for part in parts.values():
            shutil.rmtree(part, ignore_errors=True)
    return list(families)


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    digest, source = hashlib.sha256(), tar.extractfile(member)
    with open(target, "xb") as output:
        while piece := source.read(PIECE):
            digest.update(piece)
            output.write(piece)
    target.chmod(0o755)
    return digest.hexdigest()


def _damaged(file: Path) -> CourseError:
    return CourseError(
        f"{file} is no whole archive of `course tools pack`.", "Copy it again, and compare the size of the two files."
    )
