"""Run the cases of a suite, and lose at most the case in progress.

In come a checked suite and the ranks of a job. Out comes a run folder::

    case_loop.py, all ranks: case after case -- recorder of each rank --> rank 0 -- run_folder.py --> parts/*.h5
                                                                                    at the end: run.h5, report

The one rule: rank 0 writes each finished case as one closed file in ``parts/`` and merges them into ``run.h5`` at
the end, so that a killed job keeps its finished cases.

Between cases ranks agree on signals and failures (``job.py``). ``watchdog.py`` ends a case that makes no progress,
with the operation and the rank that each program waits for. ``failed_cases.py`` records unfinished cases, and
``relaunch.py`` starts ranks again for the remaining cases. Open ``case_loop.py`` first.
"""
