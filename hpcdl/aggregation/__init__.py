"""Ways of summing a vector over all ranks. One algorithm, one file: drop a file in and it is selectable.

A file whose scheme has two halves that are of use alone offers these too, so that ``hierarchical`` or ``leader``
may be made of them: ``reduce_scatter(comm, chunks)``, after which each rank r has the sum of chunk r, and
``allgather(comm, chunks)``; or ``reduce(comm, buffer)``, after which rank 0 has the sum, and
``broadcast(comm, buffer)``.

A file says where its scheme can sum, unless that is anywhere: ``MEMORY = "host"`` or ``"device"``, and
``ONE_HOST = True`` if all ranks must be on one.
"""
