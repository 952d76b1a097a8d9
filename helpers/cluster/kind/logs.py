"""The logs of a kind cluster: what runs in its Kubernetes nodes beside Pods, the control plane's Pods, the operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from helpers.cluster.kind import kuberay
from helpers.cluster.kind.engine import Engine, lines
from helpers.errors import CourseError

UNITS = ("kubelet", "containerd")  # of systemd, in each Kubernetes node
# Pods of kube-system, by the label that kubeadm gives them
LABELS = {
    "etcd": "component=etcd",
    "kube-apiserver": "component=kube-apiserver",
    "kube-controller-manager": "component=kube-controller-manager",
    "kube-scheduler": "component=kube-scheduler",
    "coredns": "k8s-app=kube-dns",
    "kube-proxy": "k8s-app=kube-proxy",
}
FIX = "See by `course status` whether it is there, and runs."


def read(
    component: str, follow: bool, engine: Engine, nodes: Iterable[str], kubectl: Path, kubeconfig: Path
) -> Iterator[str]:
    """The lines of a component's log, oldest first.

    Args:
        component: such as `etcd` or `course-worker.kubelet`.
        follow: go on with what is written from now on.
        engine: the container engine.
        nodes: names of the Kubernetes nodes.
        kubectl: the program.
        kubeconfig: the file by which the cluster is reached.

    Raises:
        CourseError: if there is no such component; while reading, if its log cannot be read.
    """
    units = {f"{node}.{unit}": (node, unit) for node in nodes for unit in UNITS}
    what = f"The log of {component} cannot be read"
    if component in units:
        node, unit = units[component]
        words = ["journalctl", f"--unit={unit}", "--no-pager", "--output=cat", *(["--follow"] if follow else [])]
        return lines(engine.inside(node, *words), what, FIX)
    if component in (*LABELS, kuberay.OPERATOR):
        words = [*_whose(component), "--tail=-1", *(["--follow"] if follow else [])]
        return lines([kubectl, "logs", *words], what, FIX, KUBECONFIG=str(kubeconfig))
    there = ", ".join([*LABELS, kuberay.OPERATOR, *units])
    raise CourseError(f"There is no log of {component}.", f"There are logs of: {there}.")


def _whose(component: str) -> list[str]:
    if component == kuberay.OPERATOR:
        return [f"--namespace={kuberay.NAMESPACE}", f"deployment/{kuberay.OPERATOR}"]
    return ["--namespace=kube-system", f"--selector={LABELS[component]}", "--prefix"]
