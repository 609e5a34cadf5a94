"""Measurements that cases share: start of a timed operation, check of its result, autotuning.

In comes a communicator and the clock of each rank. Out come starts, times, or a choice among schemes::

    rank 0    work ......|wait|== operation ==|
    rank 1    work .|  wait   |==== operation ====|
                              ^ start             ^ its time is that of the slowest rank

``timed_collectives.py`` has the two starts: a barrier, which some ranks leave later than others, or a window, a
moment on rank 0's clock. Its ``Contents`` has the test vector of each rank and the expected result.
``autotune.py`` measures alpha and beta of the links, from which the size of buckets follows, and the best
allreduce of each size for the scheme ``auto``.

The one rule: every rank calls, and ranks exchange their times before they decide. A rank that decided by its own
times might choose another scheme than its peers, and the job would hang. Only ``choose_by_simulation`` sends
nothing, since a simulation has the same result on every rank. Open ``timed_collectives.py`` first.
"""
