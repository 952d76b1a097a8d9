"""Which cluster a lesson gets, on every machine and with all that a user can set; and why."""

from __future__ import annotations

from itertools import product

import pytest

from helpers import versions
from helpers.cluster import backend
from helpers.cluster.backend import Candidate, Choice, Here, candidates, lacking
from helpers.errors import CourseError

NO_LINUX = "needs Linux, and lessons 00, 01 and 11 need no Kubernetes. Start Docker Desktop or podman"
REFUSED = r"no container engine answers, and namespaces are refused \(not permitted\)"
# system, engine, whether namespaces are allowed: what is offered in this order, or the sentence of the refusal
MACHINES: dict[tuple[str, str, bool], list[str] | str] = {
    ("linux", "", True): ["embedded"],
    ("linux", "", False): REFUSED,
    ("linux", "docker", True): ["kind", "embedded"],
    ("linux", "docker", False): ["kind"],
    ("linux", "podman", True): ["kind", "embedded"],
    ("linux", "podman", False): ["kind"],
    ("darwin", "", True): NO_LINUX,
    ("darwin", "", False): NO_LINUX,
    ("darwin", "docker", True): ["kind"],
    ("darwin", "docker", False): ["kind"],
    ("darwin", "podman", True): ["kind"],
    ("darwin", "podman", False): ["kind"],
}
# COURSE_BACKEND, COURSE_CONTEXT: the same on every machine, but for embedded
WISHES: dict[tuple[str, str], str] = {
    ("", "theirs"): "existing",
    ("existing", "theirs"): "existing",
    ("existing", ""): "!COURSE_CONTEXT does not say which. Set COURSE_CONTEXT to a context of your kubeconfig",
    ("kind", ""): "kind",
    ("kind", "theirs"): "kind",
    ("embedded", ""): "embedded",
    ("embedded", "theirs"): "embedded",
    (
        "minikube",
        "",
    ): "!There is no backend minikube. Unset COURSE_BACKEND, or set it to one of: existing, kind, embedded",
    ("minikube", "theirs"): "!There is no backend minikube",
}


def about(machine: tuple[str, str, bool], wanted: str = "", context: str = "") -> Here:
    system, engine, allowed = machine
    return Here(system, engine, "" if allowed else "not permitted", wanted, context)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_machine_can_have(machine):
    expected = MACHINES[machine]
    if isinstance(expected, str):
        with pytest.raises(CourseError, match=expected):
            candidates(about(machine))
    else:
        assert [one.name for one in candidates(about(machine))] == expected


@pytest.mark.parametrize(("machine", "wish"), list(product(MACHINES, WISHES)))
def test_what_a_user_names_comes_first(machine, wish):
    expected = WISHES[wish]
    if expected == "embedded" and machine[0] != "linux":
        expected = f"!{NO_LINUX}"
    if expected.startswith("!"):
        with pytest.raises(CourseError, match=expected[1:]):
            candidates(about(machine, *wish))
    else:
        assert [one.name for one in candidates(about(machine, *wish))] == [expected]


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (about(("linux", "", True)), "no container engine answers"),
        (about(("linux", "podman", True)), "podman answers"),
        (about(("linux", "docker", True), "embedded"), "COURSE_BACKEND names it"),
        (about(("linux", "docker", True), "", "theirs"), "COURSE_CONTEXT names theirs"),
    ],
)
def test_the_reason_is_said(here, why):
    assert candidates(here)[0].why == why


class Stand:
    """A backend that does nothing; it says whether it was brought up."""

    def __init__(self, name: str, has: set[str], runs: bool = False):
        self.name, self._has, self.runs, self.ups = name, frozenset({"kubernetes", *has}), runs, 0

    def is_running(self) -> bool:
        return self.runs

    def capabilities(self) -> frozenset[str]:
        return self._has

    def up(self) -> None:
        self.ups += 1


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch):
    """Makes a machine that can have these backends, in this order."""

    def offer(*stands: Stand) -> None:
        monkeypatch.setattr(backend, "here", lambda: None)
        monkeypatch.setattr(
            backend, "candidates", lambda here: [Candidate(one.name, f"of {one.name}") for one in stands]
        )
        monkeypatch.setattr(backend, "make", {one.name: one for one in stands}.__getitem__)

    return offer


# capabilities and whether it runs, for the first and the second of two; what the lesson needs: which is taken, and why
CHOICES = [
    ("fake_gpu", False, "fake_gpu", False, "fake_gpu", "first", "of first"),
    ("fake_gpu", True, "fake_gpu", True, "fake_gpu", "first", "it runs already"),
    ("fake_gpu", False, "fake_gpu", True, "fake_gpu", "second", "it runs already"),
    ("", True, "fake_gpu", False, "fake_gpu", "second", "of second"),
    ("", False, "fake_gpu", True, "fake_gpu", "second", "of second"),
    ("real_gpu", False, "", True, "fake_gpu", "first", "of first"),
    ("fake_gpu", False, "real_gpu", False, "real_gpu", "second", "of second"),
]


@pytest.mark.parametrize(("one", "one_runs", "other", "other_runs", "needed", "taken", "why"), CHOICES)
def test_one_that_runs_is_taken_if_it_has_what_the_lesson_needs(
    offered, one, one_runs, other, other_runs, needed, taken, why
):
    offered(Stand("first", {one}, one_runs), Stand("second", {other}, other_runs))
    choice = backend.choose(["kubernetes", needed])
    assert (choice.backend.name, choice.why) == (taken, why)


def test_what_none_of_them_has_is_named(offered):
    offered(Stand("first", {"fake_gpu"}), Stand("second", {"node_autoscaler"}))
    with pytest.raises(CourseError) as caught:
        backend.choose(["kubernetes", "fake_gpu", "node_autoscaler", "ssh_hosts"])
    assert "first lacks node_autoscaler, ssh_hosts; second lacks fake_gpu, ssh_hosts" in str(caught.value)


def test_a_cluster_is_brought_up_once(offered, capsys):
    down, up = Stand("first", set()), Stand("first", set(), runs=True)
    offered(down)
    assert backend.running(["kubernetes"]) == Choice(down, "of first") and down.ups == 1
    assert "the first one is started now, because of first; it stays until `course down`" in capsys.readouterr().out
    offered(up)
    backend.running(["kubernetes"])
    assert up.ups == 0 and not capsys.readouterr().out


def test_real_gpus_do_for_fake_ones_and_not_the_other_way_round():
    assert lacking(["fake_gpu"], {"real_gpu"}) == set()
    assert lacking(["real_gpu"], {"fake_gpu"}) == {"real_gpu"}


def test_every_backend_keeps_the_promises_of_the_door(monkeypatch):
    monkeypatch.setenv("COURSE_CONTEXT", "theirs")
    promised = {name for name in vars(backend.Backend) if not name.startswith("_")} | {"name"}
    for name in backend.CLASSES:
        kind = type(backend.make(name))
        assert kind.name == name and {one for one in promised if not hasattr(kind, one)} == set()


@pytest.mark.parametrize(
    ("ray", "python", "said"),
    [
        ("2.52.0", versions.PYTHON, rf"This notebook has Ray {versions.RAY}, and Ray is 2.52.0 in the image x"),
        (versions.RAY, "3.12.1", r"has Python 3.11, and Python is 3.12 in the image x.*Give the cluster the image"),
    ],
)
def test_another_ray_or_python_in_the_image(ray, python, said):
    with pytest.raises(CourseError, match=said):
        backend.check_ray(ray, python, "the image x")
    backend.check_ray(versions.RAY, f"{versions.PYTHON}.99", "the image x")


def test_an_engine_that_is_there_must_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name: str, code: int) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    assert backend.engine() == ""
    put("docker", 1)
    assert backend.engine() == ""
    put("podman", 0)
    assert backend.engine() == "podman"
    put("docker", 0)
    assert backend.engine() == "docker"


def test_an_engine_is_not_asked_where_the_user_names_a_backend(monkeypatch):
    monkeypatch.setattr(backend, "engine", lambda: pytest.fail("it was asked"))
    monkeypatch.setenv("COURSE_BACKEND", "embedded")
    assert backend.here().wanted == "embedded"
