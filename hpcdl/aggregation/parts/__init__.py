"""Parts that aggregation schemes share; a scheme is one file in the folder above.

In come a communicator and a vector, or segments, entries or messages made of it::

    traits.py ---> what a scheme declares, and its collectives: reduce_scatter, allgather, ...
    patterns.py -> sums and broadcasts along trees and butterflies; any number of ranks by folding
    entries.py --> sums of sparse vectors: positions and values
    messages.py -> gathering of messages whose lengths differ
    blocks.py ---> exchanges of blocks whose lengths differ, for all-to-alls with counts
    cost.py -----> formulas of a docstring, evaluated

The one rule: schemes import parts, and parts import no scheme. A part that needs a scheme finds it by name in
the registry; therefore a new file in the folder above changes nothing here.

What arrives from other ranks is checked where it is opened (``entries.py``, ``messages.py``): a wrong length or
position would otherwise become a wrong sum. Open ``traits.py`` first.
"""
