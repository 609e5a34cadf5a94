"""Keys of cases, and what follows from them before a case runs.

In comes a ``[[case]]`` of a suite. Out comes a frozen dataclass, the spec of its kind; its properties are the
objects that the keys name: layers, dataset, strategy, compression, times of work, network::

    [[case]] -- suite_tables.py: lists become cases -- key.py: values, limits -- checks.py: rows -->  spec

The one rule: a key is declared once, as a field of its spec. Names, limits and defaults stand there, and all else
asks the spec. A spec never changes; a prediction or a trial is ``replace(spec, ranks=...)``.

``key.py`` declares keys; open it first. ``checks.py`` has conditions of a case, and the table of features that
exclude each other. ``step_spec.py`` has what all training steps share: stages of pipelines, the builder of a
session; ``train_spec.py`` has the keys of trainings. ``scheme.py`` is about aggregation and compression,
``compute_times.py`` about the times of work.
"""
