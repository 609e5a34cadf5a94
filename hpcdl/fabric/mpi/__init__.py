"""The MPI interpreter: real messages between processes.

A rank is one process with a scheduler of its programs: the strategy, and each task that it started. A program that
waits for a message yields, and the scheduler polls the requests of all programs in turn (``scheduler.py``). While
a rank computes, a second thread does the arithmetic and this one goes on polling: exchanges advance during
backward without a helper in the algorithm.

Programs share one communicator. Each has a range of MPI's tags of its own, so that concurrent exchanges never
receive each other's messages (``messages.py``). How a rank waits depends on its cores: it spins on one that it
has to itself and backs off when ranks outnumber cores (``backoff.py``).

Start with ``comm.py``; ``natives.py`` has the library's own collectives.
"""
