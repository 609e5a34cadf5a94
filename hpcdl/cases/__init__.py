"""Kinds of case. One kind, one file: its keys, its checks, and the program that every rank runs.

A suite's ``[[case]]`` becomes a frozen dataclass of its kind; from there on nothing reads TOML::

    TOML ──suite.py──> TrainSpec, CollectiveSpec, ReplaySpec, PairwiseSpec ──program──> every rank ──> fields

A file has ``SPEC``, ``CHECKS`` and the functions of :class:`hpcdl.suite.Kind`. ``keys/`` declares keys with their
defaults and limits, and has the rows that refuse a case. ``parts/`` has starts of timed operations, autotuning,
and steps and collectives in virtual time.

The one rule: everything is checked before the first case runs, since a batch job that ends after an hour with a
wrong key has cost an hour. Open ``pairwise.py`` first, the shortest kind, then ``train.py``.
"""
