"""Optimizers: update rules on flat vectors, one or a family per file, and learning-rate schedules.

In come ``parameters``, ``gradients`` and a learning rate. ``parameters`` change in place. The state, such as
momentum, is in ``state`` by name: averaging strategies keep, average or reset it.

The one rule: a rule acts entry by entry; so a server can apply it to its shard, and the result is that of the
whole vector. Rules that need norms of tensors (LARS, LAMB) are told where tensors begin
(``parts/protocol.py``). L-BFGS is a program of vector operations instead (``parts/lbfgs.py``), since its
vectors are spread over servers. Open ``sgd.py`` first.
"""
