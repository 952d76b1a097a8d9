"""A container runtime whose containers are processes: CRI v1 over a Unix socket. See README.md."""
