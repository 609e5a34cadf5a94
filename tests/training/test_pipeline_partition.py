"""Partition of layers into stages, and schedules."""

import itertools

import numpy as np
import pytest

from hpcdl.cases.keys.stage_balance import partition
from hpcdl.training.parts.split.schedules import SCHEDULES, in_flight


def every_partition(layers, parts):
    for inner in itertools.combinations(range(1, layers), parts - 1):
        yield [slice(*pair) for pair in itertools.pairwise((0, *inner, layers))]


def longest(times, cut):
    return max(sum(times[part]) for part in cut)


def passed(volumes, cut):
    return sum(volumes[part.stop - 1] for part in cut[:-1])


def test_the_partition_is_that_of_brute_force():
    """The least longest stage; among equals the least volume between stages. Whole numbers: sums are exact."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(1, 10))
        times = rng.integers(0, 6, layers).tolist()
        volumes = rng.integers(0, 50, layers).tolist()
        for parts in range(1, layers + 1):
            best = min((longest(times, cut), passed(volumes, cut)) for cut in every_partition(layers, parts))
            found = partition(times, parts, volumes)
            assert (longest(times, found), passed(volumes, found)) == best
            assert [part.start for part in found] == [0, *(part.stop for part in found[:-1])]
            assert found[-1].stop == layers
            assert all(part.start < part.stop for part in found)


def test_impossible_numbers_of_stages_are_refused():
    for parts in [0, 4]:
        with pytest.raises(ValueError, match=f"3 layers make 1 to 3 stages, not {parts}"):
            partition([1.0] * 3, parts, [1.0] * 3)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (3, 2), (4, 4), (4, 9), (5, 3)])
def test_every_microbatch_goes_forward_once_then_backward_once(name, stages, microbatches):
    for stage in range(stages):
        order = SCHEDULES[name](stage, stages, microbatches)
        for forward in (True, False):
            assert sorted(one.microbatch for one in order if one.forward == forward) == list(range(microbatches))
        for m in range(microbatches):
            first, second = (one.forward for one in order if one.microbatch == m)
            assert (first, second) == (True, False)
        most = {"gpipe": microbatches, "1f1b": min(stages - stage, microbatches)}
        assert in_flight(order) == most[name]
