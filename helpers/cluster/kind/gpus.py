"""GPUs of a kind cluster: fake ones, which are a number in a Kubernetes node's status, or those of this machine.

The real ones follow what NVIDIA's nvkind does, for one Kubernetes node with all GPUs. That part was never run: no
machine on which this was written has a GPU and a container engine. Its decisions are tested with stand-ins.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers.cluster.backend import GPU_LABEL
from helpers.cluster.kind.engine import Engine, Info, must, run, show
from helpers.cluster.session import capacity
from helpers.errors import CourseError
from helpers.kube import FIELD_MANAGER, MERGE, Kube, patient
from helpers.wait import wait_until

FAKE = 4
SMI_S = 10.0
SET_UP_S = 600.0  # packages are fetched
APPLY_S = 60.0
SHOWN_S = 300.0  # the device plugin's image is pulled
RUNTIME = "nvidia"
SET_RUNTIME = (
    "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default --cdi.enabled && "
    "sudo nvidia-ctk config --set accept-nvidia-visible-devices-as-volume-mounts=true --in-place && "
    "sudo systemctl restart docker"
)


def are_here() -> bool:
    """Whether this machine has GPUs that its driver shows."""
    if not shutil.which("nvidia-smi"):
        return False
    done = run(["nvidia-smi", "-L"], SMI_S)
    return done.code == 0 and done.out.startswith("GPU 0:")


def choose(engine: Engine, info: Info) -> tuple[str, str]:
    """Which GPUs a new cluster gets: "real" or "fake"; and a remark, if it might have been otherwise."""
    if not are_here():
        return "fake", ""
    if info.runtime == RUNTIME:
        return "real", ""
    if engine.name != "docker":
        return "fake", f"This machine has GPUs, which reach a kind cluster by docker only, not by {engine.name}."
    return "fake", (
        "This machine has GPUs, and docker does not hand them on, so that the Kubernetes nodes have fake ones: "
        f"`{SET_RUNTIME}`, and then `course down --wipe` and `course up`, bring the real ones."
    )


# ---- fake ones -------------------------------------------------------------------------------------------------------


def mend(kube: Kube) -> str:
    """See that the fake GPUs are there: a kubelet that starts anew may forget them.

    Returns:
        The name of the Kubernetes node that had lost them; "" if none had.

    Raises:
        CourseError: if there is no Kubernetes node for them.
    """
    nodes = kube.resource("nodes", "v1")
    labelled = kube.list(nodes, "", f"{GPU_LABEL}=fake")
    if not labelled:
        raise CourseError(
            f"No Kubernetes node has the label {GPU_LABEL}=fake, by which the one with the fake GPUs is known.",
            "Run `course down --wipe` and then `course up`, which makes the cluster anew.",
        )
    name, status = labelled[0]["metadata"]["name"], labelled[0]["status"]
    if all(status.get(part, {}).get(capacity.GPU) == str(FAKE) for part in ("capacity", "allocatable")):
        return ""
    # the kubelet leaves a resource that it does not know in the capacity alone, and would copy it to the rest later
    change = {"status": {part: {capacity.GPU: str(FAKE)} for part in ("capacity", "allocatable")}}
    path = f"{nodes.path('', name)}/status"
    kube.request("PATCH", path, change, content_type=MERGE, fieldManager=FIELD_MANAGER)
    return name


# ---- real ones -------------------------------------------------------------------------------------------------------


def bring(engine: Engine, kube: Kube, kubectl: Path, manifests: Path) -> None:
    """Make the GPUs of the container of one Kubernetes node into GPUs of the cluster.

    Args:
        engine: the container engine.
        kube: the cluster.
        kubectl: the program.
        manifests: the folder manifests/kind.

    Raises:
        CourseError: if they do not show.
    """
    for node in _real_nodes(kube):
        name = node["metadata"]["name"]
        print(f"… installing NVIDIA's container toolkit in {name}", flush=True)
        script = engine.inside(name, "bash", "-c", (manifests / "gpu-node.sh").read_text())
        must(script, SET_UP_S, f"{name} cannot use its GPUs", "See that NVIDIA's packages can be had, and try again.")
    words = ["apply", "--server-side", "--filename", str(manifests / "nvidia-device-plugin.yaml")]
    show(["kubectl", *words])
    must(
        [kubectl, *words], APPLY_S, "NVIDIA's device plugin cannot be installed",
        "See that the cluster answers, and try again.", KUBECONFIG=str(kube.kubeconfig),
    )  # fmt: skip
    wait_until(
        patient(lambda: any(map(capacity.gpus, _real_nodes(kube)))), SHOWN_S, what="the GPUs to show", every_s=1.0,
        fix="See `kubectl -n kube-system logs daemonset/nvidia-device-plugin`.",
    )  # fmt: skip


def _real_nodes(kube: Kube) -> list[dict]:
    return kube.list(kube.resource("nodes", "v1"), "", f"{GPU_LABEL}=real")
