"""Trace of a run: what happened on each rank, in a file that later versions read.

::

    every rank -- recorder.py --> packed bytes -- gathered by rank 0 --> schema.py --> HDF5 -- run.py --> arrays

Each rank records steps, events, evaluations and updates in memory; after the case rank 0 gathers them and writes
HDF5. A run is read back case by case, each table an array as in the file. Files are not trusted: sizes, names and
types are checked first (``files.py``), where names of older versions become those of today.

The one rule: recording must cost little: an event is a tuple in a list. ``link_counters.py`` names the counters of
links that tell of errors and congestion. ``README.md`` describes the groups and fields. ``export.py`` writes the
formats of other tools. Open ``recorder.py`` first.
"""
