"""The fabric: a protocol for distributed algorithms and the interpreters that answer it."""
