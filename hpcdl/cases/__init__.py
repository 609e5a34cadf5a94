"""Kinds of case. One kind, one file: its keys, its checks, and the program that every rank runs.

A suite's ``[[case]]`` becomes a frozen dataclass of its kind; from there on nothing reads TOML::

    TOML ──suite.py──> TrainSpec, CollectiveSpec, ReplaySpec, PairwiseSpec ──program──> every rank ──> fields

``keys/`` declares keys with their defaults and limits, and ``combinations.py`` the pairs that a case cannot have
together. ``simulation/`` runs steps in virtual time. ``measuring/`` times collectives. Everything is checked
before the first case runs, since a batch job that ends after an hour with a wrong key has cost an hour.
"""
