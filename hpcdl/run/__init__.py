"""Run the cases of a suite, and lose at most the case in progress.

``case_loop.py`` runs case after case on all ranks of the job. Rank 0 writes each finished case as one closed
file in ``parts/`` and merges them into ``run.h5`` at the end (``run_folder.py``), so that a killed job keeps
what it finished. Between cases ranks agree on signals and failures (``job.py``). ``watchdog.py`` ends a case
that makes no progress, with the operation and the rank that each program waits for. ``relaunch.py`` starts ranks
again for what is left.
"""
