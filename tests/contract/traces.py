"""Modification of trace files."""

from contextlib import contextmanager

import h5py

from hpcdl.trace.files import write_checksum


@contextmanager
def changed(path):
    """Open a trace for changes; update its checksum at the end."""
    with h5py.File(path, "a") as file:
        yield file
    write_checksum(path)
