"""Averaging and gossip over MPI: as in-process, with real messages and timing."""

import numpy as np
import pytest
from contract.compression import planned
from contract.tiny import starts, tiny_session
from contract.training import GLOBAL_BATCH, session

from hpcdl.trace.recorder import Recorder
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.d_psgd import d_psgd
from hpcdl.training.diloco import diloco
from hpcdl.training.elastic_averaging import elastic_averaging, synchronous_elastic_averaging
from hpcdl.training.parameter_averaging import parameter_averaging
from hpcdl.training.parts.topologies import GRAPHS
from hpcdl.training.stochastic_gradient_push import stochastic_gradient_push
from hpcdl.training.update_broadcast import update_broadcast

pytestmark = pytest.mark.mpi

STILL = {"learning_rate": lambda _step: 0.0}


def together(mpi, parameters):
    return np.array(mpi.comm.library.allgather(parameters))


def moved(mpi, strategy, keys, **settings):
    """Return initial and final parameters of all ranks, and this rank's session."""
    own = starts(mpi.comm.size, 1)
    mine = tiny_session(start=own[mpi.comm.rank], **keys)
    mpi.run(strategy(mpi.comm, mine, **settings))
    return own, together(mpi, mine.replica.parameters), mine


@pytest.mark.parametrize("mixing", ["overlap", "after"])
@pytest.mark.parametrize(("compressor", "graph"), [("top_k", "ring"), ("one_bit", "random"), ("fp16", "torus")])
def test_compressed_d_psgd_agrees_with_the_in_process_run(compressor, graph, mixing, mpi, as_in_process):
    own = starts(mpi.comm.size, 1)

    async def train(comm):
        mine = tiny_session(start=own[comm.rank], steps=10, compression=planned(compressor, "allgather"))
        await d_psgd(comm, mine, graph=graph, mixing=mixing, consensus_step=0.1)
        return mine.replica.parameters

    found, expected = as_in_process(train)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", GRAPHS)
def test_ad_psgd_keeps_the_mean(graph, mpi):
    own, found, _ = moved(mpi, ad_psgd, {"steps": 200, **STILL}, graph=graph)
    np.testing.assert_allclose(found.mean(axis=0), own.mean(axis=0), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dedicated", [False, True])
def test_exchanges_do_not_change_the_sum_of_workers_and_centre(dedicated, mpi):
    if dedicated and mpi.comm.size == 1:
        pytest.skip("needs two ranks")
    keys = {"steps": 100, **STILL}
    own, found, mine = moved(mpi, elastic_averaging, keys, period=2, moving_rate=0.2, dedicated=dedicated)
    centre = together(mpi, mine.vectors.get("centre", np.zeros_like(found[0])))[0]
    first = int(dedicated)
    before, after = own[first:].sum(axis=0) + own[0], found[first:].sum(axis=0) + centre
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-11)


def test_update_broadcast_ends_with_equal_ranks(mpi):
    recorder = Recorder(events=False)
    mine = tiny_session(recorder, steps=100)
    mpi.run(update_broadcast(mpi.comm, mine))
    found = together(mpi, mine.replica.parameters)
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape), rtol=0, atol=1e-12)
    assert len(recorder.updates) == 100 * mpi.comm.size
    made = mpi.comm.library.allgather(len(recorder.steps))
    assert [sum(row.worker == rank for row in recorder.updates) for rank in range(mpi.comm.size)] == made


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (parameter_averaging, {"period": 4}),
        (diloco, {"period": 4, "fragments": 2, "delay": 1}),
        (elastic_averaging, {"moving_rate": 0.2}),
        (synchronous_elastic_averaging, {"period": 2}),
        (d_psgd, {}),
        (stochastic_gradient_push, {}),
        (ad_psgd, {}),
        (update_broadcast, {}),
    ],
)
def test_lenet5_learns(strategy, settings, mpi):
    """Two epochs of the digits: vectors of 430 KB, gradients on a second thread."""
    recorder = Recorder(events=False)
    keys = {"steps": 22, "evaluate_every": 1.0, "learning_rate": lambda _step: 0.02}
    mine = session("ring", "float32", recorder, **keys)
    mpi.run(strategy(mpi.comm, mine, **settings))
    images = mpi.comm.library.allreduce(sum(row.images for row in recorder.steps))
    if mpi.comm.size in (1, 2, 3, 4, 5, 8):  # equal shares
        assert images == 22 * GLOBAL_BATCH
    assert [row.step for row in recorder.evaluations] == [11, 22]
    assert recorder.evaluations[-1].accuracy > 0.6
    assert len(set(mpi.comm.library.allgather(recorder.evaluations[-1].accuracy))) == 1
