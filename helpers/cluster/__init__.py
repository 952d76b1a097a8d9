"""Where a cluster comes from: embedded (processes on this machine), kind, or an existing one."""
