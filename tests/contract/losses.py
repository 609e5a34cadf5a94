"""Helpers of the tests of failing ranks, for every interpreter."""

import numpy as np
import pytest

from hpcdl.fabric.comm import PeerLost


def number(value=0.0):
    return np.array([float(value)])


async def lost(operation):
    """Return the rank of the PeerLost that ``operation`` raises."""
    with pytest.raises(PeerLost) as caught:
        await operation
    return caught.value.rank
