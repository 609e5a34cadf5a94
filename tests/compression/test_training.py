"""Trainings with compressed gradients: they learn, and their records tell bytes and loss of information."""

from math import isnan

import numpy as np
import pytest
from contract.compression import COMPRESSORS, SCHEMES, fits, planned
from contract.tiny import replicas, tiny_session

from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.compressed.compressed import ResidualNorms
from hpcdl.training.synchronous import synchronous

RANKS = 3


def trained(chosen, strategy=synchronous, steps=6, **settings):
    """Return the ranks' sessions and recorders after a training."""
    recorders = [Recorder(events=False) for _ in range(RANKS)]
    keys = {"steps": steps, "compression": chosen, "evaluate_every": 1.0}
    start = np.random.default_rng(2).standard_normal(15)
    sessions = [
        tiny_session(recorder, replica=replica, start=start, **keys)
        for recorder, replica in zip(recorders, replicas(RANKS), strict=True)
    ]
    if chosen is not None and not chosen.aggregation.sparse:
        for one in sessions:
            one.aggregate = chosen.scheme
    in_process(RANKS, 1).run(lambda comm: strategy(comm, sessions[comm.rank], **settings))
    return sessions, [one.evaluations for one in recorders]


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_replicas_stay_equal_with_every_compressor(compressor):
    able = [scheme for scheme in SCHEMES if fits(compressor, scheme)]
    settings = {"density": 0.2} if compressor in ("top_k", "threshold", "dgc", "random_k") else {}
    for number, strategy in enumerate((synchronous, layerwise)):
        chosen = planned(compressor, able[number % len(able)], **settings)
        sessions, evaluations = trained(chosen, strategy)
        first = sessions[0].replica.parameters
        assert all((one.replica.parameters == first).all() for one in sessions)
        seen = evaluations[0][-1]
        assert 0 < seen.gradient_cosine <= 1 + 1e-9
        assert seen.gradient_error >= 0
        assert isnan(seen.residual_norm) == (not (chosen.feeds_back or chosen.traits.own_residual))


def test_dense_steps_lose_nothing_and_compressed_ones_are_measured_at_every_evaluation():
    chosen = planned("top_k", "allgather", density=0.2, warmup_steps=3)
    _, (evaluations, *_) = trained(chosen)
    early, late = evaluations[:1], evaluations[1:]
    assert early[-1].step <= 3 < late[0].step
    for one in early:
        assert (one.residual_norm, one.gradient_error) == (0, 0)
        assert one.gradient_cosine == pytest.approx(1)
    for one in late:
        assert one.residual_norm > 0
        assert 0.1 < one.gradient_cosine < 1
        assert 0 < one.gradient_error < 2
    _, (dense, *_) = trained(None)
    assert all(isnan(one.gradient_cosine) and isnan(one.residual_norm) for one in dense)


def test_memory_counts_residuals_and_vectors_of_compressors():
    sizes = {}
    for name in ("none", "top_k", "dgc"):
        chosen = None if name == "none" else planned(name, "bruck", density=0.2)
        sizes[name] = trained(chosen)[0][0].memory_bytes
    (without, *_), _ = trained(planned("top_k", "bruck", density=0.2, error_feedback=False))
    assert without.compressed.residual is None
    assert sizes["top_k"] - sizes["none"] == sizes["top_k"] - without.memory_bytes == 15 * 8
    assert sizes["dgc"] - sizes["none"] == 2 * 15 * 8


def test_norms_of_residuals_are_those_of_the_vectors():
    """The last exchange is always recorded: its norm is that of the vector that is left."""
    for strategy in [synchronous, layerwise]:
        sessions, _ = trained(planned("top_k", "allgather", density=0.2), strategy, steps=7)
        for one in sessions:
            rows = one.compressed.norms.rows()
            assert [row.step for row in rows] == [0, 4, 6]
            assert rows[-1].residual_norm == pytest.approx(np.linalg.norm(one.compressed.residual))
            assert all(row.gradient_norm > 0 for row in rows)


def test_gradients_and_residuals_of_several_parts_are_one_vector():
    norms = ResidualNorms(9)
    assert [step for step in range(12) if norms.due(step)] == [0, 4, 8]
    for part in ([3.0, 0.0], [], [4.0]):
        norms.add_gradient(4, np.array(part))
        norms.add_residual(4, 2 * np.array(part))
    assert norms.rows() == [(4, 10, 5)]
