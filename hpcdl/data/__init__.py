"""Datasets: one source or family per file.

A dataset is two splits of images with labels, its source, and a digest by which runs are compared. Nothing is
downloaded: ``digits`` comes with the package, ``synthetic`` images are computed from their index, and the others
are read from local files.

The one rule: which images a rank sees depends on the seed, the epoch and the image only, never on the number of
ranks (``parts/sharding.py``, ``parts/splits.py``): so synchronous training on p ranks equals one rank with
the whole batch. Files are checked before use. ``convert.py`` is a program. Open ``digits.py`` first.
"""
