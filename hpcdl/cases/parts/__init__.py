"""Parts of kinds of case: measured operations, autotuning, and cases in virtual time.

``measuring.py`` has the starts of a timed operation: a barrier, which some ranks leave later than others, or a
window, a moment on rank 0's clock::

    rank 0    work ......|wait|== operation ==|
    rank 1    work .|  wait   |==== operation ====|
                              ^ start             ^ its time is that of the slowest rank

Its ``Contents`` has the test vector of each rank and the expected result; ``confirmed`` measures again what took
longer than its peers. ``autotune.py`` measures alpha and beta of the links, from which the size of buckets
follows, and the best allreduce of each size for the scheme ``auto``. Every rank calls, and ranks exchange their
times before they decide: a rank that chose by its own times might choose another scheme than its peers, and the
job would hang.

``step_simulation.py`` trains in virtual time on a modelled network; open it first::

    spec.session(comm, journal, kernels) -> strategy(comm, session)

    kernels: numpy, numba, ...   real gradients: measured trainings, and ``simulate``
             sizes               shapes without arithmetic: replays, and ``virtual_step`` for predictions

``operations.py`` has collectives and layers of sizes alone, simulated by one host's ranks where all hosts do the
same. Strategies, schemes and compressors do not know whether they are simulated: vectors of sizes behave like
arrays (:class:`hpcdl.fabric.vectors.Phantom`). These modules import ``keys/``, which imports none of them.
"""
