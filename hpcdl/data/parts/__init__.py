"""Parts that datasets share: reading, shuffling and augmentation.

::

    files ──dataset.py──> bytes and labels ──splits.py──> batch(indices): augmented, normalised floats
                                                                  ^
                              sharding.py: indices of a rank at a step

Images stay bytes until a batch is asked for. Random numbers are raw generator output, which numpy guarantees not
to change. Open ``dataset.py``, then ``sharding.py``.
"""
