"""Start ranks, describe machine and software, check the machine, emulate a cluster.

All that depends on the surroundings is here: launchers and their variables (``process.py``), ``mpirun``
(``mpirun.py``), Slurm (``batch_script.py``), /proc and /sys (``machine.py``, ``environment.py``), other
processes on the same cores (``disturbance.py``), and the network namespaces of ``hpcdl testbed``. A launcher
that does not fit the MPI library is found before MPI starts: each process would be alone, and every number
wrong.
"""
