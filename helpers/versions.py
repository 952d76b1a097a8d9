"""Every pin of the course, and every fact that hangs on one. Tests, docs and notebooks read them from here."""

from __future__ import annotations

PYTHON = "3.11"  # the Ray image and the notebook must agree on the minor version
RAY = "2.60.0"
JUPYTERLAB = "4.6.6"
NBGRADER = "0.9.6"
NBVAL = "0.11.0"

# What is built from Go modules (tools/); `course tools check` compares these with the go.mod files.
KUBERNETES = "1.36.3"
KUBERAY = "1.6.2"
ETCD = "3.6.16"
COREDNS = "1.14.7"
CRI_TOOLS = "1.37.0"  # critest, for tests only
KIND = "0.33.0"
GO_MIN = "1.26.6"

# The image of all Ray containers in the course's manifests, as its publisher calls it.
RAY_IMAGE = f"rayproject/ray:{RAY}-py{PYTHON.replace('.', '')}"
KUBERAY_IMAGE = f"quay.io/kuberay/operator:v{KUBERAY}"  # as the chart and the module name it

# What a kind cluster is made from, beside these images.
KIND_OLDEST = "0.32.0"  # of a kind on PATH: the release whose source names this image of the Kubernetes nodes
KIND_NODE_IMAGE = "kindest/node:v1.36.1@sha256:3489c7674813ba5d8b1a9977baea8a6e553784dab7b84759d1014dbd78f7ebd5"
NVIDIA_DEVICE_PLUGIN = "0.19.0"  # where there are real GPUs; its image is named in manifests/kind/

# Ports of a Ray head, as `ray start --head` opens them (Ray docs, "Configuring Ray"; shown live in lesson 01).
PORT_GCS = 6379
PORT_DASHBOARD = 8265
PORT_CLIENT = 10001
PORT_SERVE = 8000
PORT_AGENT = 52365  # the dashboard agent of every Ray node, HTTP
