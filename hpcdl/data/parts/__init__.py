"""Parts that datasets share: reading, shuffling and augmentation.

::

    files ──dataset.py──> bytes and labels ──splits.py──> batch(indices) ──augmentation.py──> normalised floats
                                                              ^
                          sharding.py: indices of a rank at a step

Images stay bytes until a batch is asked for, so that a dataset takes a quarter of its size in floats.

The one rule: an image's content and place depend on seed, epoch and its index only, never on ranks, threads or
timing: training on p ranks sees the images that one rank would. Random numbers are raw generator output, which
numpy guarantees not to change. Open ``dataset.py``, then ``sharding.py``.
"""
