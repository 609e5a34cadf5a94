"""Cases in virtual time: the programs of a case on a modelled network, with real values or with sizes alone.

In comes a case with its keys, a network and the times of work. Out come the times and the messages of its steps::

    spec.session(comm, journal, kernels) -> strategy(comm, session)

    kernels: numpy, numba, ...     real gradients: measured trainings, and ``simulate``
             sizes (``sizes.py``)  shapes without arithmetic: replays, and ``virtual_step`` for predictions

The one rule: strategies, schemes and compressors do not know whether they are simulated. Vectors of sizes behave
like arrays (:class:`hpcdl.fabric.vectors.Phantom`), so that nothing asks.

``step_simulation.py`` has both kinds of simulated training; open it first. ``operations.py`` simulates
collectives, by one host's ranks where all hosts do the same. ``exchange_costs.py`` measures the arithmetic of
compressed exchanges on this machine, which no network describes. This room imports ``keys/``, which imports
nothing of it.
"""
