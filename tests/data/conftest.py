"""What tests of datasets share: one-line messages, files that may be packed."""

import gzip

import numpy as np
import pytest

from hpcdl.data.parts.dataset import DataError


def message_of(call, *arguments, **settings):
    """Return the message, one line, with which a call is refused."""
    with pytest.raises(DataError) as caught:
        call(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path, content):
    """Write a file, packed if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def everything(split, dtype="float64", key=None):
    """Return all images and labels of a split."""
    return split.batch(np.arange(len(split)), dtype, key)
