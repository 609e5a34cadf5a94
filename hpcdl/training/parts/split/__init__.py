"""Model and pipeline parallelism: the layers of one replica are divided among the ranks of a model group.

In comes a replica of which each rank has only its parts, and a share of the batch. Out come the gradients of these
parts, equal to those of an undivided replica. A mesh has data parallelism across the groups::

    mesh of 2 x 3 ranks      model group 0: ranks 0 1 2     one replica, three parts of each layer
                             model group 1: ranks 3 4 5     another
    data groups              {0, 3} {1, 4} {2, 5}           ranks with the same parts sum their gradients

Layers compute on the arrays that they are given; a :class:`~hpcdl.training.parts.split.flow.Flow` moves
activations between two layers, from one layout to another, and their gradients the opposite way. The one rule:
nothing but the flow and the neighbours of a section communicates within a group.

A *section* is a run of consecutive layers that work on microbatches in the order of a schedule. A replica on one
rank is one section with one microbatch. A stage of a pipeline is a section whose neighbours are other ranks. The
split layers of a hybrid are a section whose microbatches are passes. Open ``mesh.py`` first.
"""
