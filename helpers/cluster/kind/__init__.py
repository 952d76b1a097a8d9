"""A kind cluster: Kubernetes nodes that are containers of Docker or podman.

engine    the programs that are run: the container engine, kind, kubectl, helm
programs  where kind and kubectl are; kind is built if it is not on PATH
machine   what is looked at before a cluster is made: memory, inotify limits, disk
images    the images of the Kubernetes nodes, of Ray and of KubeRay's operator: had, and put into the Kubernetes nodes
kuberay   the operator, by Helm or by the manifests of its Go module
gpus      fake GPUs, or the machine's own
mark      what is kept of the cluster that was made
status    the table · logs the logs · backend all of it behind the door that all clusters have
"""

from helpers.cluster.kind.backend import Kind

__all__ = ["Kind"]
