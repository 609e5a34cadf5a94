"""Modification of trace files, and their refusal."""

from contextlib import contextmanager

import h5py
import pytest

from hpcdl.trace.files import write_checksum
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import read


@contextmanager
def changed(path):
    """Open a trace for changes; update its checksum at the end."""
    with h5py.File(path, "a") as file:
        yield file
    write_checksum(path)


def refused(path, *words):
    """Check that a trace is refused in one line that has its path and the words."""
    with pytest.raises(TraceError) as caught:
        len(read(path).events)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in (str(path), *words)), message
