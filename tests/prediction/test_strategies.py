"""Predicted steps of every strategy beside those of its training in virtual time, and jitter."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from hpcdl import registry, suite
from hpcdl.analysis.run.launches import throughput_of
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.prediction.predict import predict
from hpcdl.trace.recorder import STEP, UPDATE, Recorder
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.traits import Strategy

RANKS, BATCH, NETWORK = 4, 16, "ethernet-10g"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a suite with one simulated training."""

    def write(**keys):
        given = {"training": '"synchronous"', "ranks": RANKS, "flops": 5e9, "steps": 16, **keys}
        file = tmp_path / "suite.toml"
        file.write_text(
            '[suite]\nname = "s"\n[[case]]\nkind = "train"\nmodel = "lenet5"\ndataset = "digits"\n'
            f'learning_rate = 0.01\nglobal_batch = {BATCH}\nnetwork = "{NETWORK}"\n'
            + "".join(f"{key} = {value}\n" for key, value in given.items())
        )
        return file

    return write


@pytest.mark.parametrize("name", registry.names("training"))
def test_sizes_take_the_time_of_a_training(name, written):
    """Real gradients on the same network: the time of a global batch, and the staleness."""
    file = written(training=f'"{name}"')
    if registry.traits("training", name, Strategy).optimizer:  # its line searches depend on losses
        with pytest.raises(suite.UsageError, match="losses decide"):
            predict(file, NETWORK)
        return
    (row,) = predict(file, NETWORK).steps
    (case,) = suite.load(file).cases
    recorder = Recorder()
    in_process(1).run(case.module.program(case.spec, Journal(recorder, lambda: Counters(0, 0, 0, 0, 0))))

    def columns(name, dtype):
        rows = [(rank, *row) for rank, one in enumerate(recorder.virtual) for row in getattr(one, name)]
        return np.array(rows, [("rank", int), *((field, dtype[field]) for field in dtype.names)])

    throughput, updates = throughput_of(columns("steps", STEP), 2, BATCH), columns("updates", UPDATE)
    assert row.predicted_seconds == pytest.approx(throughput.seconds.mean(), rel=0.03)
    inside = updates[(updates["time"] >= throughput.begin) & (updates["time"] <= throughput.end)]
    expected = pytest.approx(inside["staleness"].mean(), rel=0.05) if len(inside) else None
    assert row.predicted_staleness_mean == expected


def test_the_slowest_of_the_ranks_has_the_largest_factor(written):
    """Median of the largest of p lognormal factors with mean 1: their quantile 0.5 ** (1 / p)."""
    for ranks in [1, 4, 8]:
        file = written(aggregation='"none"', ranks=ranks)
        (steady,), shaken, repeated = (predict(file, NETWORK, jitter=jitter).steps for jitter in (0, 0.2, 0.2))
        deviation = math.sqrt(math.log1p(0.2**2))
        expected = math.exp(deviation * NormalDist().inv_cdf(0.5 ** (1 / ranks)) - deviation**2 / 2)
        low, high = (
            getattr(shaken[0], f"predicted_{bound}_seconds") / steady.predicted_seconds
            for bound in ("low", "high")
        )
        assert low < expected < high < 1.11 * low
        repeated, shaken = ([row.predicted_seconds for row in rows] for rows in (repeated, shaken))
        assert repeated == shaken


@pytest.mark.parametrize("ranks", [3, 5])
def test_messages_that_are_under_way_at_once_share_their_ports(ranks, tmp_path):
    """Two phases, in each of which a port carries p - 1 chunks at once, with no gap on odd numbers of ranks."""
    file, elements = tmp_path / "suite.toml", 1000 * ranks
    file.write_text(
        f'[suite]\nname = "s"\n[[case]]\nkind = "collective"\naggregation = "direct"\nranks = {ranks}\n'
        f"message_bytes = {4 * elements}\n"
    )
    (row,) = predict(file, NETWORK).rows
    network, sent = NETWORKS[NETWORK], (ranks - 1) * 4000
    stated = 2 * (network.link.alpha + sent * network.link.beta) + sent * network.gamma
    assert row.predicted_seconds == pytest.approx(stated, rel=1e-6)
