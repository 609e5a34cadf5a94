"""Dataset sources, one per file."""
