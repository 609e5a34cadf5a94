"""Parts that training strategies share; a strategy is one file in the folder above.

Every strategy uses ``session.py`` (its arguments), ``gradient.py`` (one gradient, layer by layer), ``inputs.py``,
``evaluation.py``, ``journal.py`` (times of steps) and ``traits.py`` (what a strategy declares). Rooms have the
parts of one idea:

- ``compressed``: sums of gradients that a compressor has made smaller.
- ``servers``: workers push gradients to servers and fetch parameters, without common steps.
- ``sandblaster``: a coordinator commands vector operations on shards.
- ``split``: one replica's layers are divided among several ranks.
"""
