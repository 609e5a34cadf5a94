"""Drift of replicas before an average, computed by each rank from norms, against the distances themselves."""

import numpy as np
import pytest
from contract.tiny import tiny_session

from hpcdl.data.parts.sharding import Shares
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.training.parameter_averaging import parameter_averaging
from hpcdl.training.parts.session import Drift


@pytest.mark.parametrize(("ranks", "shares"), [(2, (1,)), (3, (3, 1)), (5, (1,))])
def test_the_drift_is_the_distance_from_the_average(ranks, shares, monkeypatch):
    weights = np.array(Shares(weights=shares).among(ranks), float)
    weights /= weights.sum()
    seen = {}
    before = Drift.before

    def noted(self, parameters, weight):
        before(self, parameters, weight)
        seen.setdefault(id(self), []).append((weight, parameters.copy()))

    monkeypatch.setattr(Drift, "before", noted)

    async def program(comm):
        mine = tiny_session(steps=6, shares=Shares(weights=shares))
        await parameter_averaging(comm, mine, period=3)
        return (await mine.watched[0].fields(comm))["replica_drift"]

    found = in_process(ranks).run(program)
    squares = norms = 0.0
    for replicas in zip(*seen.values(), strict=True):
        assert sum(weight for weight, _ in replicas) == pytest.approx(1)
        average = sum(weight * parameters for weight, parameters in replicas)
        squares += sum(weight * ((parameters - average) ** 2).sum() for weight, parameters in replicas)
        norms += (average**2).sum()
    assert found == [pytest.approx(np.sqrt(squares / norms), rel=1e-6)] * ranks
