"""What a cluster did and does, read from its own objects and events."""
