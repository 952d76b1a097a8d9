"""What the submitter's shell makes of a RayJob, against bash itself, and what happens at its end."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import pytest
import yaml

from helpers.model import rayjob, shell
from helpers.model.rayjob import HTTP, INTERACTIVE, K8S_JOB, PATTERN, QUOTING, SECOND_COMMAND, SIDECAR, SUBSTITUTION
from helpers.model.releases import releases

# the line that KubeRay makes (BuildJobSubmitCommand), with a program in the place of `ray` that writes down its words
BASH = """
ray() {{ if [ "$2" = status ]; then return 1; fi
  if [ "$2" = submit ]; then while [ "$1" != -- ]; do shift; done; shift; printf '%s\\0' "$@" >submitted; fi; }}
if ! ray job status --address http://x id >/dev/null 2>&1 ; then ray job submit --address http://x --no-wait\
 --submission-id id -- {entrypoint} ; fi ; ray job logs --address http://x --follow id
"""

ENTRYPOINTS = [
    # the entrypoint, what Ray gets, what runs in the submitter, what is said of it
    ("python train.py --lr 1e-3", "python train.py --lr 1e-3", [], None),
    ("  python train.py \n", "python train.py", [], None),
    ("python train.py --name 'a b' \"c d\" e\\ f", "python train.py --name 'a b' 'c d' 'e f'", [], None),
    ("python -c 'import ray; ray.init()'", "python -c 'import ray; ray.init()'", [], None),
    ("python -c \"print('a')\"", """python -c 'print('"'"'a'"'"')'""", [], None),
    ("bash -c 'cd /app && python a.py | tee log'", "bash -c 'cd /app && python a.py | tee log'", [], None),
    ("python a.py \\\n  --lr 1", "python a.py --lr 1", [], None),
    ("python a.py --json '{\"lr\": 0.1}'", "python a.py --json '{\"lr\": 0.1}'", [], None),
    ('python a.py ""', "python a.py ''", [], None),
    ("python a.py --cost 5\\$ '$HOME'", "python a.py --cost '5$' '$HOME'", [], None),
    ("cd /app && python a.py", "cd /app", ["python a.py"], SECOND_COMMAND),
    ("python a.py; python b.py --x 1", "python a.py", ["python b.py --x 1"], SECOND_COMMAND),
    ("python a.py\npython b.py\n", "python a.py", ["python b.py"], SECOND_COMMAND),
    ("python a.py | tee log.txt", "python a.py", ["tee log.txt"], SECOND_COMMAND),
    ("python a.py 2>&1 | tee log | wc", "python a.py", ["tee log", "wc"], SECOND_COMMAND),
    ("python a.py & python b.py", "python a.py", ["python b.py"], SECOND_COMMAND),
    ("python a.py || python b.py", "python a.py", [], SECOND_COMMAND),
    ("python a.py --at $(date +%s)", "python a.py --at <seconds>", ["date +%s"], SUBSTITUTION),
    ("python a.py --out=run-`date +%s`.txt", "python a.py --out=run-<seconds>.txt", ["date +%s"], SUBSTITUTION),
    ("python a.py --at \"$(echo a b)\"", "python a.py --at 'a b'", ["echo a b"], SUBSTITUTION),
    ("python a.py $(echo a b)", "python a.py a b", ["echo a b"], SUBSTITUTION),
    ("python a.py --token $NO_SUCH_NAME", "python a.py --token", [], SUBSTITUTION),
    ('python a.py --token "${NO_SUCH_NAME}"', "python a.py --token ''", [], SUBSTITUTION),
    ("python a.py --token ${NO_SUCH_NAME:-none}", "python a.py --token none", [], SUBSTITUTION),
    ("python a.py data/*.csv", "python a.py 'data/*.csv'", [], PATTERN),
    ("python a.py part-?.csv", "python a.py 'part-?.csv'", [], PATTERN),
    ("python a.py part-[0-9].csv", "python a.py 'part-[0-9].csv'", [], PATTERN),
    ("python a.py > out.txt", "python a.py", [], None),
    ("python a.py --x {a,b}", "python a.py --x a b", [], None),
    ("python a.py x{a,b{1,2}}y{3,4} {} {z} '{a,b}'", "python a.py xay3 xay4 xb1y3 xb1y4 xb2y3 xb2y4 '{}' '{z}' '{a,b}'",
     [], None),
    ('python a.py --cfg {"a":1,"b":2}', "python a.py --cfg a:1 b:2", [], None),
    ('python a.py --cfg {"a": 1}', "python a.py --cfg '{a:' '1}'", [], None),
    ("X=1 python a.py", "X=1 python a.py", [], None),
    ("X='a b' python a.py", "'X=a b' python a.py", [], QUOTING),
    ("X=1 Y='$' python a.py", "X=1 'Y=$' python a.py", [], QUOTING),
    ("python a.py X='a b'", "python a.py 'X=a b'", [], None),
    ("python a.py s{1..3} {c..a} {01..10..4} {1..x} {-1..1}",
     "python a.py s1 s2 s3 c b a 01 05 09 '{1..x}' -1 0 1", [], None),
    ("python a.py '{1..3}' {1..'3'}", "python a.py '{1..3}' '{1..3}'", [], None),
    ("python a.py $'one\\ttwo' $'it\\'s' $\"x y\"", "python a.py 'one\ttwo' 'it'\"'\"'s' 'x y'", [], None),
    ("python a.py --n $((2 * (3 + 4))) $((7 / -2)) $((7 % 4))", "python a.py --n 14 -3 3", [], SUBSTITUTION),
    ('python a.py "n=$((1+1))"', "python a.py n=2", [], SUBSTITUTION),
]  # fmt: skip


@pytest.mark.parametrize(("entrypoint", "text", "runs", "warning"), ENTRYPOINTS)
def test_what_ray_gets_of_an_entrypoint(entrypoint, text, runs, warning):
    for mode in (K8S_JOB, SIDECAR):
        made = rayjob.submitted(entrypoint, mode)
        assert (made.entrypoint, list(made.runs_in_submitter), made.warning) == (text, runs, warning)
    assert rayjob.submitted(entrypoint, HTTP) == rayjob.Submitted(entrypoint)
    assert rayjob.submitted(entrypoint, INTERACTIVE).entrypoint is None


def test_two_parentheses_that_hold_no_sum():
    made = rayjob.submitted("python a.py $((echo a); echo b)")
    assert (made.runs_in_submitter, made.warning) == (("(echo a); echo b",), SUBSTITUTION)
    assert rayjob.submitted("python a.py $((1 + N))").runs_in_submitter == ()


@pytest.mark.parametrize("entrypoint", [one[0] for one in ENTRYPOINTS])
def test_the_shell_is_bash(entrypoint, tmp_path):
    line = BASH.format(entrypoint=shell.kubernetes_expanded(entrypoint.strip(), {}))
    environment = {"PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-ce", "--", line], cwd=tmp_path, env=environment, capture_output=True, check=False)
    words = (tmp_path / "submitted").read_text().split("\0")[:-1]
    there = re.sub(r"\b\d{10}\b", "<seconds>", shlex.join(words))
    assert there == rayjob.submitted(entrypoint).entrypoint


@pytest.mark.parametrize(
    "entrypoint", ["python a.py;", "python a.py &", "(python a.py)", "python 'a.py", "a # b", "a ;; b"]
)
def test_an_entrypoint_that_bash_does_not_take(entrypoint, tmp_path):
    line = BASH.format(entrypoint=entrypoint)
    assert subprocess.run(["bash", "-ce", "--", line], cwd=tmp_path, capture_output=True, check=False).returncode
    assert not (tmp_path / "submitted").exists()
    assert rayjob.submitted(entrypoint).entrypoint is None


@pytest.mark.parametrize(
    ("entrypoint", "text", "warning"),
    [
        ("python a.py --lr 1", "python a.py --lr 1", None),
        ("python -c 'print(1)'", "python -c print(1)", QUOTING),
        ("python -c 'import ray; ray.init()'", 'python -c "import ray; ray.init()"', None),
        ("python a.py --name 'a b'", 'python a.py --name "a b"', None),
        ("python a.py '$HOME/x'", "python a.py $HOME/x", QUOTING),
        ("python a.py --glob 'x*'", "python a.py --glob x*", QUOTING),
        ("python a.py --glob x*", "python a.py --glob x*", PATTERN),
        ("python a.py '{\"a\":1}'", 'python a.py {\\"a\\":1}', None),
        ('python a.py "it\'s"', "python a.py it's", QUOTING),
        ("python a.py 'a;b'", "python a.py a;b", QUOTING),
    ],
)
def test_rays_that_write_words_down_as_windows_does(entrypoint, text, warning):
    made = rayjob.submitted(entrypoint, K8S_JOB, releases("2.55.1"))
    assert (made.entrypoint, made.warning) == (text, warning)


def test_a_submitter_without_a_shell():
    assert rayjob.submitted("a; b", K8S_JOB, releases(kuberay="1.2.2")) == rayjob.Submitted("a; b")


# ---- the runtime environment

TOKEN = {"A": "s3cret"}


@pytest.mark.parametrize(
    ("value", "submitter", "head", "there"),
    [
        ("$(A)", {}, TOKEN, ""), ("$(A)", TOKEN, {}, "s3cret"), ("$A", {}, TOKEN, ""), ("$A", TOKEN, {}, "s3cret"),
        ("${A}", TOKEN, {}, "s3cret"), ("${A:-none}", {}, TOKEN, "none"), ("plain", TOKEN, TOKEN, "plain"),
        ("`A`", TOKEN, TOKEN, ""), ("a $ b", {}, {}, "a $ b"), ("x-$(B)-y", TOKEN, {}, "x--y"),
        ("\\$A", TOKEN, {}, "\\s3cret"), ("$$(A)", TOKEN, {}, ""), ("a\"b'c\\d\n", {}, {}, "a\"b'c\\d\n"),
        ("$A", {"A": 'say "x"'}, {}, None), ("ü<&>", {}, {}, "ü<&>"),
    ],
)  # fmt: skip
def test_what_the_driver_sees(value, submitter, head, there):
    text = yaml.safe_dump({"env_vars": {"T": value}})
    for mode in (K8S_JOB, SIDECAR):
        assert rayjob.runtime_env_value(text, "T", submitter, head, mode) == there


@pytest.mark.parametrize(
    ("value", "there"),
    [("$(A)", "$(A)"), ("$A", "s3cret"), ("${A}/x", "s3cret/x"), ("${B}", ""), ("$B", "$B"), ("`A`", "`A`")],
)
def test_what_the_driver_sees_without_a_submitter(value, there):
    assert rayjob.runtime_env_value(yaml.safe_dump({"env_vars": {"T": value}}), "T", {}, TOKEN, HTTP) == there


def test_a_variable_that_the_runtime_environment_does_not_have():
    for text in ("", "pip: [torch]", "env_vars: {B: x}"):
        assert rayjob.runtime_env_value(text, "A", {}, TOKEN) == "s3cret"
    assert rayjob.runtime_env_value("env_vars: {A: x}", "B", {}, TOKEN) is None
    assert rayjob.runtime_env_value("env_vars: {A: 1}", "A", {}, TOKEN) is None  # Ray takes only texts
    assert rayjob.runtime_env_value("env_vars: {A: x}", "A", {}, TOKEN, INTERACTIVE) == "s3cret"


@pytest.mark.parametrize(
    "value", ["$(A)", "$A b", "${A}", '"\\$A"', "`echo x`", "a\\b\\n", "$'x'", "100%", "$$(A)", "~"]
)
def test_the_double_quotes_are_those_of_bash(value):
    text = yaml.safe_dump({"env_vars": {"T": value}})
    quoted = json.dumps(yaml.safe_load(text), separators=(",", ":")).replace("\\", "\\\\").replace('"', '\\"')
    line = f'printf %s "{shell.kubernetes_expanded(quoted, TOKEN)}"'
    done = subprocess.run(["bash", "-c", "--", line], env={"PATH": "/usr/bin:/bin", **TOKEN}, capture_output=True)
    assert json.loads(done.stdout)["env_vars"]["T"] == rayjob.runtime_env_value(text, "T", TOKEN, {})


@pytest.mark.parametrize(
    ("text", "made"),
    [("$(A)", "1"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$A", "$A"), ("$(A", "$(A"), ("a$", "a$")],
)
def test_what_kubernetes_replaces(text, made):
    assert shell.kubernetes_expanded(text, {"A": "1"}) == made


# ---- the end, and the place


def test_what_is_deleted_at_the_end():
    assert rayjob.cleanup(False) == rayjob.cleanup(False, 60) == rayjob.Cleanup(False)
    assert rayjob.cleanup(True) == rayjob.Cleanup(True, 0)
    assert rayjob.cleanup(True, 300) == rayjob.Cleanup(True, 300)
    assert rayjob.cleanup(True, 300, {"ray.io/cluster": "a"}) == rayjob.Cleanup(False)


def test_how_often_it_is_tried():
    assert rayjob.clusters_created(4, succeeds=False) == 5
    assert rayjob.clusters_created(4, succeeds=True) == rayjob.clusters_created(0, succeeds=False) == 1


@pytest.mark.parametrize(
    ("cpus", "head", "worker", "most", "place"),
    [
        (0, 0, 4, 2, "head"), (1, 0, 4, 2, "worker"), (8, 0, 4, 2, "nowhere"), (1, 2, 4, 2, "head"),
        (3, 2, 4, 2, "worker"), (3, 2, 4, 0, "nowhere"), (0.5, 0, 1, 1, "worker"), (4, 0, 4, 1, "worker"),
    ],
)  # fmt: skip
def test_where_the_driver_runs(cpus, head, worker, most, place):
    assert rayjob.driver_place(cpus, head, worker, most) == place
