"""Files and YAML that somebody wrote: whatever is in them, each of the readers ends in data or in a sentence."""

from __future__ import annotations

import io
import sys
import time

import pytest
import yaml

from helpers import reading
from helpers.cluster.session.manifest import read as to_apply
from helpers.errors import CourseError
from helpers.model import manifest
from helpers.reading import is_yaml, read_file

READERS = {
    "manifest.documents": manifest.documents,
    "manifest.read": manifest.read,
    "manifest.long_documents": manifest.long_documents,
    "session.manifest.read": to_apply,
}
BEGIN = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"  # 3 lines, so that the 4th is the faulty one
GROWN = list(zip("abcdefghi", "bcdefghij", strict=True))
LISTS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in GROWN)
MERGES = f"a: &a {{{', '.join(f'k{n}: 1' for n in range(9))}}}\n" + "".join(
    f"{n}: &{n} {{<<: [{','.join([f'*{p}'] * 9)}], x{n}: 1}}\n" for p, n in GROWN
)
FAULTS = {
    "lists that aliases repeat": (LISTS, r"Line \d+: with what is repeated by aliases, this is too big"),
    "mappings that << repeats": (MERGES, r"Line \d+: with what is repeated by aliases, this is too big"),
    "a long text that is repeated": (
        f"a: &a {'x' * 40_000}\nb: [{','.join(['*a'] * 1000)}]\n",
        "Line 5: with what is repeated by aliases, this is too big",
    ),
    "a list in itself": ("a: &a [*a]\n", "Line 4: with what is repeated by aliases, this is too big"),
    "a mapping merged into itself": ("a: &a {<<: *a}\n", "Line 4: with what is repeated by aliases, this is too big"),
    "too deep": ("a: " + "[" * 80 + "]" * 80 + "\n", "Line 4 is nested too deeply"),
    "much too deep": ("a: " + "[" * 2000, r"Line 4 is nested too deeply|line 4, .*nesting depth"),
    "5000 digits": ("a: " + "9" * 5000 + "\n", "line 4.*'9{39} cannot be read as int"),
    "no number": ("a: !!int ''\n", "line 4.*'' cannot be read as int"),
    "no float": ("a: !!float ':'\n", "line 4.*':' cannot be read as float"),
    "no true or false": ("a: !!bool maybe\n", "line 4.*'maybe' cannot be read as bool"),
    "no moment": ("a: !!timestamp soon\n", "line 4.*'soon' cannot be read as timestamp"),
    "no base64": ("a: !!binary é\n", "line 4.*base64"),
    "a tag of nobody": ("a: !mine 3\n", "line 4.*constructor for the tag '!mine'"),
    "an object of Python": ("a: !!python/object/apply:os.system ['true']\n", "line 4.*constructor for the tag"),
    "an alias of nothing": ("a: *b\n", "line 4.*undefined alias"),
    "a merge of a number": ("a: {<<: 3}\n", "line 4.*expected a mapping"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_read_is_said_with_its_line(reader, text, said):
    started = time.process_time()
    with pytest.raises(CourseError, match=said) as caught:
        READERS[reader](BEGIN + text)
    assert len(caught.value.what) < 400
    assert time.process_time() - started < 10


def test_what_many_documents_repeat_is_counted_together():
    text = "a: &a xxxxxxxxxx\nb: [*a, *a, *a, *a, *a]\n---\n" * 1000
    assert len(list(yaml.load_all(text, type("Loader", (reading.Careful, yaml.SafeLoader), {"most": 100_000})))) == 1001
    with pytest.raises(CourseError, match="with what is repeated"):
        list(yaml.load_all(text, type("Loader", (reading.Careful, yaml.SafeLoader), {"most": 50_000})))


@pytest.mark.parametrize(
    "text", ["{" + ",".join(["a", "b"] * 2) + "}", "a:\n" * 3, "[" * 9 + "]" * 9, "- a\n- \n", "1"]
)
def test_a_text_that_repeats_nothing_is_never_too_big(text):
    assert reading._size(yaml.compose(text), len(text), {}, 0) <= len(text)


@pytest.mark.parametrize("reader", READERS)
def test_anchors_and_merge_keys_that_are_right(reader):
    text = (
        BEGIN + "x: {y: &one {<<: &two {kind: a, name: b}, name: c}}\nz: {<<: *one, kind: d}\nv: {<<: [*two, *one]}\n"
    )
    [found] = READERS[reader](text)
    data = getattr(found, "data", found)
    assert data["x"] == {"y": {"kind": "a", "name": "c"}} and data["z"] == {"kind": "d", "name": "c"}
    assert set(data["v"]) == {"kind", "name"}


def test_the_line_of_what_is_merged_and_set_anew():
    text = "a: &a\n  size: 1\nb:\n  <<: *a\n  size: .nan\n"
    with pytest.raises(CourseError, match=r"^b\.size \(line 5\) is an unusual number"):
        manifest.documents(text)


def test_a_path_or_yaml():
    assert all(map(is_yaml, ("a: 1", "a\n", "{a: 1}", " {}")))
    assert not any(map(is_yaml, ("a.yaml", "/some where/a.yaml", "C:\\a.yaml", "-")))


@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_of_files(tmp_path, code):
    (tmp_path / "a.yaml").write_bytes("ä: ✔\n".encode(code))
    assert read_file(tmp_path / "a.yaml", "The file") == "ä: ✔\n"


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\n")))
    assert read_file("-", "What was given") == "a: 1\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a: 1\nb: \xff\n", "The file is no text: line 2 has bytes"),
        (b"a: 1\nb: d\xe9mo\n", "The file is no text: line 2 has bytes"),
        (b"\x1f\x8b\x08\x00\xffgz", "The file is no text: line 1 has bytes"),
        ("a: 1\nb: 2\n".encode("utf-16") + b"\x00", "The file is no text: line 3 has bytes"),
        (b"x" * 2000, "The file has more than 0 MB"),
    ],
)
def test_files_that_hold_no_text(tmp_path, monkeypatch, data, said):
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    (tmp_path / "a.yaml").write_bytes(data)
    with pytest.raises(CourseError, match=said):
        read_file(tmp_path / "a.yaml", "The file")


@pytest.mark.parametrize("path", ["none.yaml", ".", "a\x00b", "x" * 5000])
def test_files_that_cannot_be_read(path):
    with pytest.raises(CourseError, match="^The file cannot be read: "):
        read_file(path, "The file")
