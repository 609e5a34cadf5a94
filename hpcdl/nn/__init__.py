"""Neural networks: layers describe, a backend's kernels compute, a replica holds the flat vectors."""
