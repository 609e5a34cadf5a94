"""Start ranks, describe machine and software, check the machine, emulate a cluster.

All that depends on the surroundings is here, so that the other rooms know no launcher and no /proc::

    launcher and its variables   process.py, mpirun.py, mpi_probe.py
    Slurm                        batch_script.py
    machine and software         machine.py (/proc, /sys), environment.py, preflight.py (``hpcdl check``)
    other processes              counters.py: CPU time that they and the hypervisor take from a rank; health
    ``hpcdl testbed``            testbed.py, testbed_inside.py: network namespaces

The one rule: a launcher that does not fit the MPI library is found before MPI starts: each process would be alone,
and every number wrong. Open ``process.py`` first.
"""
