"""Optimizers: update rules on flat vectors, one per file, and learning-rate schedules.

A rule changes ``parameters`` in place from ``gradients`` and a learning rate, entry by entry; so a server can
apply it to its shard, and the result is that of the whole vector. Rules that need norms of tensors (LARS, LAMB)
are told where tensors begin (``parts/per_tensor.py``). The state, such as momentum, is in ``state`` by name:
averaging strategies keep, average or reset it. L-BFGS is a program of vector operations instead
(``parts/lbfgs.py``), since its vectors are spread over servers.
"""
