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
GO_MIN = "1.26.6"

# Ports of a Ray head, as `ray start --head` opens them (Ray docs, "Configuring Ray"; shown live in lesson 01).
PORT_GCS = 6379
PORT_DASHBOARD = 8265
PORT_CLIENT = 10001
PORT_SERVE = 8000
PORT_AGENT = 52365  # the dashboard agent of every Ray node, HTTP
