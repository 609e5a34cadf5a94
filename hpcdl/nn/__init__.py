"""Neural networks: layer descriptions, kernels per backend, replicas with flat parameter vectors."""
