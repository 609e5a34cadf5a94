"""Compressed pushes and fetches of asynchronous training: nothing is lost, and bytes are those of the wire."""

import numpy as np
import pytest
from contract import quadratic
from contract.asynchronous import Run as Training
from contract.asynchronous import common
from contract.compression import COMPRESSORS, planned

from hpcdl.fabric.virtual.clocks import in_process

RATE = 0.25
MESSAGES = [name for name in COMPRESSORS if name != "power_sgd"]
BSP = {"name": "ssp", "collect": "all", "bound": 0}
DOWNPOUR = {"name": "downpour", "overlap": True}
PLACES = [
    (1, {**DOWNPOUR, "servers": 3, "dedicated": True, "n_fetch": 3, "n_push": 2}),
    (1, {"servers": 1, "delay_compensation": "adaptive"}),
    (2, {**BSP, "servers": 2}),
    (3, {**BSP, "servers": 1}),
    (5, {**BSP, "servers": 3, "dedicated": True}),
]
"""Workers and settings whose results do not depend on the schedule."""
SCHEDULES = [(2, {}), (3, {"servers": 3}), (5, {**DOWNPOUR, "servers": 2, "dedicated": True, "n_push": 3})]
SCHEDULES += [(5, {"name": "downpour", "n_fetch": 2}), (7, {"name": "ssp", "bound": 1})]
"""Ranks and settings of several kinds of asynchronous training."""


class Accrued(quadratic.QuadraticLoss):
    """A quadratic loss that sums the gradients of its mini-batches."""

    def __init__(self, size, dtype):
        super().__init__(size, dtype)
        self.total = np.zeros(size, dtype)

    def loss(self, images, labels, scale):
        trains = not self.tests
        found = super().loss(images, labels, scale)
        if trains:
            self.total += self.gradients
        return found


class Run(Training):
    """Training with servers whose messages ``chosen`` compresses; None: they are dense."""

    def __init__(self, ranks, chosen, numbers, seed=0, size=5, dtype="float64", **settings):
        def make(**rest):
            return quadratic.session(size, dtype, replica=Accrued(size, dtype), compression=chosen, **rest)

        self.world = in_process(ranks, seed)
        super().__init__(self.world, make, numbers=numbers, **settings)

    def of(self, name):
        """Return the sum over ranks of a counter of the compression."""
        return sum(getattr(session.compressed, name) for session in self.sessions)

    @property
    def gradients(self):
        return sum(len(recorder.steps) for recorder in self.recorders)


def few(name, **settings):
    """Return the plan of a compressor that sends some of 5 or 29 elements."""
    density = {"density": 0.3} if name in ("top_k", "threshold", "dgc", "random_k") else {}
    return planned(name, "ring", **density, **settings)


def test_lossless_messages_change_no_bit():
    """Shards of 2, 1 and 0 elements."""
    for workers, numbers in PLACES:
        ranks = workers + numbers["servers"] * numbers.get("dedicated", False)
        for seed in range(2):
            dense = Run(ranks, None, numbers, seed, size=4)
            for code in ("words", "rice"):
                sparse = Run(ranks, planned("top_k", "ring", density=1.0, code=code), numbers, seed, size=4)
                assert np.array_equal(sparse.parameters, dense.parameters)
                assert not np.any([one.compressed.residual for one in sparse.sessions[:workers]])


@pytest.mark.parametrize(("ranks", "numbers"), SCHEDULES, ids=str)
@pytest.mark.parametrize("name", MESSAGES)
def test_sent_and_residual_are_the_gradients(name, ranks, numbers):
    """Every update subtracts rate x workers x (the decoded gradient)."""
    chosen = few(name, **({} if name == "dgc" else {"error_feedback": True}))
    if name == "dgc":
        chosen = few(name, momentum=0.0)
    workers = ranks - numbers.get("servers", 1) * numbers.get("dedicated", False)
    dtype, most = ("float32", 1e-4) if chosen.traits.rounds_values else ("float64", 1e-9)
    rate = lambda _step: RATE / workers
    run = Run(ranks, chosen, numbers, seed=ranks, size=29, dtype=dtype, learning_rate=rate)
    residual = sum(
        one.compressed.state["accumulated"] if name == "dgc" else one.compressed.residual
        for one in run.sessions[:workers]
    )
    accrued = sum(one.replica.total for one in run.sessions)
    sent = (np.linspace(-1, 1, 29) - run.parameters) / RATE
    np.testing.assert_allclose(sent + residual, accrued, rtol=most, atol=most)
    assert run.gradients == 6 * workers


def test_saved_bytes_are_those_of_the_wire():
    for name in MESSAGES:
        numbers = {**BSP, "servers": 2, "dedicated": True}
        for warmup in (0, 2):
            dense, small = (Run(5, one, numbers, size=801) for one in (None, few(name, warmup_steps=warmup)))
            assert sum(dense.world.bytes) - sum(small.world.bytes) == small.of("saved_bytes") > 0
            directions = 1 if small.sessions[0].compressed.plan.traits.rounds_values else 2
            assert small.of("warmup_bytes") == directions * warmup * 3 * 801 * 8


def test_parameters_of_servers_are_not_rounded():
    """Even with a residual of gradients: the server's own vector is the exact sum of its updates."""
    numbers = {"servers": 1, "dedicated": True}
    dense = Run(2, None, numbers, size=801, dtype="float32")
    narrow = Run(2, planned("fp16", "ring", error_feedback=True), numbers, size=801, dtype="float32")
    found = narrow.parameters
    assert (found.astype(np.float16) != found).mean() > 0.9
    np.testing.assert_allclose(found, dense.parameters, atol=2e-3)


@pytest.mark.parametrize("name", ["top_k", "fp16", "one_bit"])
@pytest.mark.parametrize("seed", range(4))
def test_the_others_train_on_when_a_worker_fails(name, seed):
    run = Run(5, few(name), {"name": "downpour", "servers": 2, "n_push": 2}, seed, failure=(3, 2))
    common([one for rank, one in enumerate(run.sessions) if rank != 3])
    assert run.gradients >= 30
