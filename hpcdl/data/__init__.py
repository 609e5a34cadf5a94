"""Dataset sources, one per file, and how an epoch is shared between ranks."""
