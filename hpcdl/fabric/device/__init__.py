"""Messages of arrays in GPU memory, and NCCL's allreduce.

An array that isn't numpy's reaches MPI by one of three ways, chosen once per process (``transport.py``)::

    device   array ─────────────────────────────> MPI       the library reads device pointers
    staged   array ──copy──> pinned slots ──────> MPI       any library; pieces overlap (``staged_copy.py``)
    ipc      array <──────── mapped by the peer             ranks of one host; MPI carries the handshake only

Each way is a generator that yields waits, so that the scheduler of :mod:`hpcdl.fabric.mpi` runs other programs
meanwhile. Sums never happen in the library: schemes add on the device.

The one rule: the library knows no streams, so that no message starts before the device has finished its queued
work. Open ``staged_copy.py`` first; it uses neither CUDA nor MPI, and tests run it without both.
"""
