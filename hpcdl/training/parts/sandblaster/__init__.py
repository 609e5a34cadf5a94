"""Sandblaster L-BFGS (Dean et al. 2012, section 4.2): a coordinator without vectors, and servers of shards.

The coordinator holds no vectors. It sends commands and receives scalars::

    coordinator  -- direction, length, "add", "dot" -->  servers   each applies the operation to its own shard
                 <-- parts of a dot product ------------
    coordinator  -- number of a portion --------------->  workers  fetch x once per batch, accumulate gradients
                 <-- loss of the portion ---------------            push their sum to the servers on command

A batch has several portions per worker. An idle worker gets the next one; near the end of a batch the oldest
unfinished portions are assigned twice, and the first result counts. The one rule: a portion's gradient is counted
once, and a worker pushes only portions that the coordinator has accepted. Open ``coordinator.py`` first.
"""
