"""What of an existing cluster needs no cluster: what its objects say, and how that is shown."""

from __future__ import annotations

import pytest

from helpers import versions
from helpers.cluster import existing, probe
from helpers.errors import CourseError
from helpers.kube import KubeError


class Stand:
    """Answers as a `Kube` does, from a table."""

    def __init__(self, kinds: set[str], images: list[str] | None):
        self._kinds, self._images = kinds, images

    def find(self, name: str, api_version: str = "") -> str | None:
        return name if name in self._kinds else None

    def resource(self, name: str, api_version: str = "") -> str:
        return name

    def list(self, resource: str, namespace: str) -> list[dict]:
        if self._images is None:
            raise KubeError(403, "Forbidden", "no")
        containers = [{"image": image} for image in self._images]
        return [{"spec": {"template": {"spec": {"containers": containers}}}}]


@pytest.mark.parametrize(
    ("kinds", "images", "version"),
    [
        (set(), ["quay.io/kuberay/operator:v1.6.2"], None),
        ({"rayclusters"}, ["quay.io/kuberay/operator:v1.6.2"], "1.6.2"),
        ({"rayclusters"}, ["nginx:1.27.0", "mirror.example:5000/kuberay/operator:v1.5.1"], "1.5.1"),
        ({"rayclusters"}, ["example.com/kuberay-operator:1.4.0-gke.3"], "1.4.0"),
        ({"rayclusters"}, ["quay.io/kuberay/operator:nightly"], ""),
        ({"rayclusters"}, ["quay.io/other/operator:v9.9.9"], ""),
        ({"rayclusters"}, None, ""),
    ],
)
def test_the_version_of_kuberay(kinds, images, version):
    assert existing._kuberay(Stand(kinds, images)) == version


def test_gpus_that_call_themselves_fake_are_counted_apart():
    def machine(count: str, **labels: str) -> dict:
        allocatable = {"nvidia.com/gpu": count} if count else {}
        return {"metadata": {"labels": labels}, "status": {"allocatable": allocatable}}

    nodes = [machine(""), machine("4", **{"ray-course/gpus": "fake"}), machine("2"), machine("1", gpu="a100")]
    assert existing._gpus(nodes) == (4, 3)
    assert existing._gpus([{"metadata": {}, "status": {}}]) == (0, 0)


def test_the_status_says_what_is_wrong_and_what_to_do():
    told = existing.Status("head", (("Kubernetes", "1.36.3"),), (CourseError("It is so.", "Do that."),))
    assert str(told) == "head\nKubernetes  1.36.3\n✘ It is so.\n  → Do that." and not told.is_ready
    assert str(existing.Status("[head]", ())) == "[head]\n✔ Lessons can run there."
    assert existing.Status("[head]", ()).__rich__().startswith(r"\[head]")


def test_an_owner_is_the_same_next_time(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    first = existing.owner()
    assert existing.owner() == first and len(first) == 6
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert existing.owner() != first


def test_a_state_directory_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(CourseError, match="cannot be made: Not a directory. Set XDG_STATE_HOME"):
        existing.owner()


# ---- the probe of the Ray image --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", probe.NOT_PULLED)
def test_an_image_that_is_not_pulled(reason):
    waiting = {"reason": reason, "message": "failed to pull:\n  dial tcp: no such host."}
    pod = {"status": {"containerStatuses": [{"state": {"waiting": waiting}}]}}
    with pytest.raises(CourseError) as caught:
        probe._check_pulled(pod, versions.RAY_IMAGE)
    told = str(caught.value)
    assert f"The image {versions.RAY_IMAGE} cannot be pulled: failed to pull: dial tcp: no such host." in told
    assert all(way in told for way in ("mirror", "archive", "preload"))


def test_a_pod_that_starts_is_not_taken_for_one_without_an_image():
    for state in ({"waiting": {"reason": "ContainerCreating"}}, {"running": {}}):
        probe._check_pulled({"status": {"containerStatuses": [{"state": state}]}}, "x")
    probe._check_pulled({"status": {}}, "x")


def test_why_a_pod_of_the_probe_waits():
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
    assert probe._why({"status": {"conditions": [condition]}}) == " (0/3 nodes are available)"
    assert probe._why({"status": {}}) == ""


class Probed(Stand):
    """A cluster in which the Pod of the probe has ended and printed something."""

    def __init__(self, said: str):
        super().__init__(set(), [])
        self._said = said

    def get(self, resource: str, name: str, namespace: str) -> dict:
        return {"status": {"phase": "Succeeded"}}

    def logs(self, pod: str, namespace: str) -> str:
        return self._said


def test_what_the_pod_of_the_probe_says():
    assert probe._answer(Probed('a warning\n["2.60.0", "3.11.9"]\n'), "n", "i", 1) == ("2.60.0", "3.11.9")
    for nonsense in ("", "python: not found\n", "3\n"):
        with pytest.raises(CourseError, match="A Pod of i ended as Succeeded and did not say its versions, but: "):
            probe._answer(Probed(nonsense), "n", "i", 1)
