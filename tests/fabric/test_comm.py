"""The parts of the protocol that need no interpreter."""

import itertools

import numpy as np
import pytest

from hpcdl.fabric.task import LEVELS, tag_space
from hpcdl.fabric.vectors import Phantom, partition, phantom


@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, 100])
@pytest.mark.parametrize("parts", [1, 2, 7, 8])
def test_parts_are_views_and_make_up_the_whole(length, parts):
    whole = np.arange(length)
    cut = partition(whole, parts)
    assert len(cut) == parts
    assert np.concatenate(cut).tolist() == whole.tolist()
    lengths = [len(part) for part in cut]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
    for part in cut:
        part[:] += 1
    assert whole.tolist() == list(range(1, length + 1))


def test_a_phantom_has_a_size_and_no_memory():
    big = phantom(10**12, np.float64)
    assert type(big) is Phantom
    assert type(big[5:]) is Phantom
    assert (big.size, big.nbytes, big.strides) == (10**12, 8 * 10**12, (0,))


def test_tag_spaces_differ():
    """Over starters, communicators and numbers, as many as are in flight together."""
    spaces = [0]
    level = [0]
    for width in (20, 6, 3)[: LEVELS - 1]:
        pairs = itertools.product(level, range(3), range(1, width + 1))
        level = [tag_space(starter, depth, started) for starter, depth, started in pairs]
        spaces += level
    assert len(set(spaces)) == len(spaces)
    assert all(isinstance(space, int) and space >= 0 for space in spaces)
