"""Parts that aggregation schemes share; a scheme is one file in the folder above.

In come a communicator and a vector, or segments, entries or messages made of it. Each file has one idea that
several schemes or their callers need::

    traits.py ------> what a scheme declares: one host, native, sparse, composite, ...
    collectives.py -> reduce_scatter, allgather, ... of a scheme: a function of that name in its file
    trees.py -------> parents and children; sums and broadcasts along them, in segments
    folding.py -----> any number of ranks for a scheme that needs a power of two
    entries.py -----> sums of sparse vectors: positions and values
    messages.py ----> gathering of messages whose lengths differ
    butterflies.py -> pairs of ranks in log2(p) steps, and sums along them
    cost.py --------> formulas of a docstring, evaluated

The one rule: schemes import parts, and parts import no scheme. A part that needs a scheme finds it by name in
the registry; therefore a new file in the folder above changes nothing here.

What arrives from other ranks is checked where it is opened (``entries.py``, ``messages.py``): a wrong length or
position would otherwise become a wrong sum. Open ``traits.py`` first, then ``trees.py``.
"""
