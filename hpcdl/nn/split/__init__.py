"""Layers split among the ranks of a model group: the parts of each rank, and the layouts between them.

::

    layers ──> divide(rank) ──> parts     part 1 ──gives──> [messages] ──takes──> part 2 ──gives──> ...

A :class:`~hpcdl.nn.split.part.Layout` names one axis and each rank's positions on it: images (data
parallelism), rows, or features. A :class:`~hpcdl.nn.split.part.Part` is an ordinary layer with the sizes of one
rank, the layout that it takes and the one that it gives. Where these differ, a flow moves positions between ranks
(:mod:`hpcdl.training.parts.sections`).

The one rule: a split changes no result but the order of sums. A docstring's lines "Forward:" and "Backward:" state
the elements moved, and tests count them. Open ``part.py``, then ``division.py``.
"""
