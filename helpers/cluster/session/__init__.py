"""A lesson on Kubernetes: what `Lab` hands its calls on to.

place      the namespace, the kubeconfig of its own, kubectl, and the lock that notebooks of one lesson share
manifest   what is applied, looked at before the cluster sees it · templates whether running Pods are as it says
apply      server-side apply, and what it says · settle whether an object has settled · tables Pods and events, shown
target     names such as raycluster/demo, and what an object owns · capacity what the Kubernetes nodes have left
head       Python on the head · job the Jobs API · forward a port that leads to a Pod · cleanup removing it all
session    all of these together
"""

from helpers.cluster.session.session import Session

__all__ = ["Session"]
