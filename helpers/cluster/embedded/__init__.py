"""Kubernetes without a container engine: real components as processes in private namespaces. See README.md."""
