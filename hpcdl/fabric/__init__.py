"""The fabric: a protocol for distributed algorithms, and the interpreters that answer it.

An algorithm is an ``async def`` over a :class:`hpcdl.fabric.comm.Comm`. Each ``await`` hands an operation to the
interpreter that runs the program; the algorithm never knows which one that is::

                       comm.send / recv / exchange / apply / compute / start
    algorithm  ──────────────────────────────────────────────────────────────>  interpreter
               <──────────────────────────────────────────────────────────────
                       result, once the operation has completed

    mpi/        processes and messages of an MPI library: measurements
    virtual/    all ranks in this process: seeded schedules for tests, virtual time for predictions
    device/     how arrays in GPU memory become messages

The one rule: what has a clock, a thread, MPI or a file is in an interpreter. So one program is measured, tested
on any number of ranks, and predicted on thousands, and its messages can be counted.

Read ``comm.py`` first: operations, their promises, and what an algorithm may rely on. ``task.py`` has the tag
spaces that keep concurrent programs apart, ``network.py`` the costs of virtual time. ``faults.py`` makes ranks
slow or lets them fail. This room imports no other room of hpcdl.
"""
