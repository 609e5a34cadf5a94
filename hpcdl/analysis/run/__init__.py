"""Analysis of one run: how a trace becomes records.

In comes a :class:`hpcdl.trace.run.Run`: for each case its fields, and tables of steps, evaluations, updates and
ranks, which stay arrays until a number is made of them. Out comes a :class:`hpcdl.analysis.run.record.Record`
for each case and seed::

    fields of a case -- Record.of --> Record without numbers
                                           |
    tables -- launches.py: over ranks -> Launch -- pooling.py: of one case --> Point -- scaling.py --> Record
              slowest rank of each step            equal configuration,              base, efficiency,
                                                   ranks and seed                    near-linear or not

A record is what JSON, CSV and tables show: its attributes are their columns. A new key of a case needs no code
here, because keys declare their roles (:data:`hpcdl.cases.keys.key.Role`), from which follow:

- ``Record.problem``: the table of a case. Cases of one table agree in problem, conditions, scaling and batch.
- ``Record.method``: how it is computed, which names its row.
- ``Record.configuration``: what launches have in common that are pooled. Two cases of one launch that agree in
  it, in ranks and in seed, are an error (``AmbiguousCaseError``) and no average.

The one rule: a reservation travels with the number. ``Record.marks`` says simulated, emulated, oversubscribed,
disturbed, diverged, extrapolated or undetermined; sentences, claims, ``hpcdl bench`` and predictions read it
there. Times are those of undisturbed launches; if all are disturbed, their times are shown with that mark.

``record.py`` has columns, keys and marks; open it first, then ``launches.py``, which also has
accuracy, memory and staleness. ``deciding.py`` is about the time to a target, ``disturbance.py`` about ranks that
share cores and time that other processes took. ``pooling.py`` makes one run of several launches, before all this.
"""
