"""What a manifest means, as pure functions: no cluster, no widgets, nothing is started."""
