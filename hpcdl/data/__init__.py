"""Datasets: one source per file.

A dataset is two splits of images with labels, its source, and a digest by which runs are compared. Nothing is
downloaded. Which images a rank sees depends on the seed, the epoch and the image only, never on the number of
ranks (``parts/sharding.py``, ``parts/augmentation.py``): so synchronous training on p ranks equals one rank with
the whole batch. Files come from other programs and are checked before they are believed.
"""
