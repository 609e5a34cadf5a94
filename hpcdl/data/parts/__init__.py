"""Shared parts of datasets: file formats, shuffling, augmentation and prefetching."""
