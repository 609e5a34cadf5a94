"""Aggregation schemes: algorithms that sum a vector over all ranks. One scheme, one file; a new file is found.

A scheme is ``async def name(comm, buffer)``; afterwards every rank's ``buffer`` has the sum, in the same bits.
Its docstring states messages, bytes and time in p, n, alpha, beta and gamma. Tests count the messages and
compare the time with the simulation, so that the formula in ``hpcdl list aggregation --json`` is that of the
code.

A file may also define the two phases of its scheme, for ``hierarchical``, ``leader`` and collective cases:
``reduce_scatter(comm, chunks)``, after which each rank r has the sum of chunk r, and ``allgather(comm,
chunks)``; or ``reduce(comm, buffer)``, after which rank 0 has the sum, and ``broadcast(comm, buffer)``. For
collective cases alone there are ``all_to_all(comm, chunks)`` and ``alltoallv(comm, blocks)``.

A file's ``TRAITS`` declares the traits that differ from the defaults of
:class:`hpcdl.aggregation.parts.traits.Aggregation`. Nothing else lists schemes.

Open ``ring.py`` first, then ``tree.py``: 65 lines each.
"""
