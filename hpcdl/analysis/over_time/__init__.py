"""Over time: changes between runs.

In come runs, each reduced to one number per case and measure (``series.py``; ``archive.py`` reads and keeps them).
Out come two answers: a comparison of a candidate with a baseline, and the state of an archive today: changes that
are open, accepted or repaired, and measures that cannot be judged yet.

The one rule: a run is judged with the runs before it alone. A later run never alters an earlier finding, so that a
nightly check and a check of the whole archive agree. Both errors count: false alarms, and missed changes;
``tests/analysis/history_figures.py`` and ``comparison_figures.py`` measure them on synthetic nights. ::

    RunSeries  ->  pairing, regressions     ->  Comparison      hpcdl compare
    History    ->  change_points, suspects  ->  SuiteVerdict    hpcdl history

Open ``series.py`` first.
"""
