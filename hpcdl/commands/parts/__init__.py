"""Parts of commands: options, jobs, and the checks of ``hpcdl check NAME``.

``options.py`` has the declaration of a command, and options declared by their usage; an error is one line with
the nearest valid name. It completes words in a shell, and reads and writes the files that options name. A regular
file is replaced at once, because a collector may read it. ``bench_table.py`` has the options that ``bench`` and
``tune`` share. ``job.py`` runs a suite for ``run`` and ``bench``::

    in a shell -- from_shell: check suite, memory and folder --> mpirun hpcdl run SUITE
    as a rank --- in_job -------------------------------------> run/case_loop.py

``contracts.py`` runs a scheme or a strategy on ranks of one process, and checks sums, equal bits, stated costs and
deadlocks, or images, losses and steps; it checks compressors and models on arrays. Tests run the same contracts.

The one rule: an error that can be found in the shell is found there, before ranks start. Open ``options.py``
first.
"""
