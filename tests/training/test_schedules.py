"""Lock-step strategies end with the same parameters in every schedule."""

from functools import cache, partial

import numpy as np
import pytest
from contract.schedules import SCHEDULES, ranks_in
from contract.tiny import replicas, starts, tiny_session

from hpcdl.aggregation.binomial import binomial
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.training.d_psgd import d_psgd
from hpcdl.training.diloco import diloco
from hpcdl.training.elastic_averaging import synchronous_elastic_averaging
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parameter_averaging import parameter_averaging
from hpcdl.training.stochastic_gradient_push import stochastic_gradient_push
from hpcdl.training.synchronous import synchronous
from hpcdl.training.zero import zero

START = starts(1)[0]
BUCKET = 40
"""Bytes of a bucket: a third of the parameters, so that three sums are under way at once."""

STRATEGIES = {
    "synchronous": partial(synchronous, bucket_bytes=BUCKET),
    "layerwise": partial(layerwise, bucket_bytes=BUCKET),
    "parameter_averaging": partial(parameter_averaging, period=2),
    "diloco": partial(diloco, period=3, fragments=3, delay=1),
    "synchronous_elastic_averaging": synchronous_elastic_averaging,
    "d_psgd": partial(d_psgd, mixing="overlap"),
    "d_psgd after": partial(d_psgd, mixing="after", graph="random"),
    "stochastic_gradient_push": partial(stochastic_gradient_push, graph="random"),
    "zero-2": partial(zero, bucket_bytes=BUCKET),
    "zero-3": partial(zero, stage=3),
}


def scheduled(name, ranks, seed):
    """Return the parameters of all ranks after four steps, with an evaluation after each."""

    async def program(comm):
        replica = replicas(16)[comm.rank]
        keys = {"steps": 4, "evaluate_every": 0.5, "aggregate": ring if "zero" in name else binomial}
        await STRATEGIES[name](comm, tiny_session(start=START, replica=replica, **keys))
        return replica.parameters.copy()

    return np.array(in_process(ranks, seed).run(program))


@cache
def in_one_order(name, ranks):
    return scheduled(name, ranks, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_schedule_ends_with_the_same_parameters(name):
    for seed in SCHEDULES[::2]:
        ranks = ranks_in(seed)
        found = scheduled(name, ranks, seed)
        np.testing.assert_allclose(found, in_one_order(name, ranks), rtol=0, atol=1e-13)
        assert np.abs(found - START).max() > 1e-3
