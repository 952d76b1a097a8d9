"""The course checks itself: its lessons, its helpers and its texts against the rules that its authors agreed on."""
