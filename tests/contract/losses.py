"""What tests of dying ranks need on every interpreter."""

import numpy as np
import pytest

from hpcdl.fabric.comm import PeerLost


def number(value=0.0):
    return np.array([float(value)])


async def lost(operation):
    """The rank that stood in the way of an operation."""
    with pytest.raises(PeerLost) as caught:
        await operation
    return caught.value.rank
