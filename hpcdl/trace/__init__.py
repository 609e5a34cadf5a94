"""Trace of a run: what happened on each rank, in a file that later versions read.

Each rank records steps, events, evaluations and updates in memory (``recorder.py``); after the case rank 0
gathers them and writes HDF5 (``schema.py``). Recording must cost little: an event is a tuple in a list. A run is
read back as pandas frames (``run.py``), from files that are not trusted: sizes, names and types are checked
first (``files.py``). ``README.md`` describes the groups and fields. ``export.py`` and ``chakra.py`` write the
formats of other tools.
"""
