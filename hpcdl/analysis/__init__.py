"""Analysis: from the records of a run to numbers with intervals.

In comes a :class:`hpcdl.trace.run.Run`: tables of steps, events, evaluations and ranks, and the description of
each case. Out come times, efficiencies, waiting, slow links, changes over many runs, each with a 95 % interval
or with the reason why there is none. Words, tables and figures are made in :mod:`hpcdl.report`.

The one rule: the launch is the unit. Steps of one launch are not independent, so that a launch gives one number
(its median), and intervals are over launches (Hoefler & Belli, SC15). A disturbed launch does not count.

========================  ==================================================================
``run/``                  one run: launches, records, scaling, time to a target
``network/``              links between hosts, and waiting apart from transfer
``over_time/``            many runs: comparison of two sets, change points of an archive
``statistics/``           intervals and tests, which know no run
========================  ==================================================================

Open ``run/launches.py`` first: everything else starts with its ``Launch``. Nothing is imported of rooms
that come after it: :mod:`hpcdl.prediction`, :mod:`hpcdl.report`, :mod:`hpcdl.commands`.
"""
