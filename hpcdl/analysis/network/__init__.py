"""Network: how fast the links are, and who waits for whom.

In come exchanges between pairs of ranks (``links.py``), or the events of traced steps (``waiting.py``). Out
come the speed of each link and the hosts and links that are slow; and for each rank the seconds of a step in
which it waits for another rank, apart from those in which bytes move.

The one rule: a rank that waits is not blamed, the rank that begins last is. A message waits from its begin at one
end until the other end begins too; from then on it moves::

    rank 0   send |waits......|moves----|
    rank 1        computes    |recv-----|        rank 1 is late, its link is not slow

Open ``waiting.py`` first. A slow link is named by measurement of all pairs, never by waiting.
"""
