"""Asynchronous training over MPI: no deadlock at any number of ranks; staleness as in theory."""

import numpy as np
import pytest
from contract import quadratic
from contract.asynchronous import chosen
from contract.compression import planned
from contract.training import STEPS, TOLERANCE, session

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Recorder, Update

pytestmark = pytest.mark.mpi


def train(mpi, make, **numbers):
    """Return this rank's session and recorder, and the updates of all ranks."""
    strategy = chosen(mpi.comm.size, numbers)
    recorder = Recorder(events=False)
    mine = make(recorder=recorder)
    mpi.run(strategy(mpi.comm, mine))
    library = mpi.comm.library
    assert len(set(library.allgather(mine.replica.parameters.tobytes()))) == 1
    assert not library.Iprobe()
    return mine, recorder, [Update(*row) for rows in library.allgather(recorder.updates) for row in rows]


@pytest.mark.parametrize(("servers", "dedicated"), [(1, False), (2, True)])
def test_all_gradients_and_bound_0_is_one_rank_with_the_whole_batch(servers, dedicated, mpi, difference):
    ranks = mpi.comm.size
    if servers > ranks - dedicated:
        pytest.skip("too few ranks")
    make = lambda **rest: session("none", "float64", **rest)
    mine, _, updates = train(mpi, make, name="ssp", collect="all", bound=0, servers=servers, dedicated=dedicated)
    assert difference(mine.replica.parameters, "float64") < TOLERANCE["float64"]
    assert len(updates) == servers * STEPS * (ranks - servers * dedicated)
    assert {update.staleness for update in updates} == {0}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("top_k", {"density": 0.01, "code": "rice"}), ("fp16", {}), ("one_bit", {"warmup_steps": 3})],
)
def test_compressed_messages_are_those_of_one_process(name, settings, mpi):
    """Parameters and bytes, with two dedicated servers."""
    ranks = mpi.comm.size
    if ranks < 3:
        pytest.skip("too few ranks")
    numbers = {"name": "ssp", "collect": "all", "bound": 0, "servers": 2, "dedicated": True}
    make = lambda **rest: quadratic.session(
        size=20_001, dtype="float32", compression=planned(name, "ring", **settings), **rest
    )
    alone = [make() for _ in range(ranks)]
    world = in_process(ranks)
    world.run(lambda comm: chosen(ranks, numbers)(comm, alone[comm.rank]))
    before = mpi.counters()
    mine, _, _ = train(mpi, make, **numbers)
    assert np.array_equal(mine.replica.parameters, alone[mpi.comm.rank].replica.parameters)
    assert mpi.counters().bytes - before.bytes == world.bytes[mpi.comm.rank]
    assert mine.compressed.saved_bytes == alone[mpi.comm.rank].compressed.saved_bytes


@pytest.mark.parametrize(
    "numbers",
    [
        {"name": "downpour", "n_fetch": 3, "n_push": 2},
        {"name": "downpour", "n_fetch": 5, "n_push": 5, "overlap": True, "warm_start": 3},
        {"name": "softsync", "scale_rate": "staleness"},
        {"name": "ssp", "bound": 1, "push": "updates"},
        {"delay_compensation": "adaptive"},
    ],
    ids=str,
)
@pytest.mark.parametrize("dedicated", [False, True])
def test_all_mini_batches_are_trained_on(numbers, dedicated, mpi):
    ranks = mpi.comm.size
    if dedicated and ranks == 1:
        pytest.skip("too few ranks")
    workers = ranks - dedicated
    make = lambda **rest: quadratic.session(size=20_000, steps=STEPS, learning_rate=lambda step: 0.001, **rest)
    mine, recorder, _ = train(mpi, make, dedicated=dedicated, **numbers)
    library = mpi.comm.library
    assert np.isfinite(mine.replica.parameters).all()
    assert library.allreduce(len(recorder.steps)) == STEPS * workers
    assert len(set(library.allgather(tuple(recorder.evaluations[-1][:2])))) == 1


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_server_that_discards_stale_gradients_applies_as_many_and_none_of_them(dedicated, mpi):
    workers = mpi.comm.size - dedicated
    if workers < 2:
        pytest.skip("too few ranks")
    make = lambda **rest: quadratic.session(size=20_000, steps=STEPS, learning_rate=lambda step: 0.001, **rest)
    _, _, updates = train(mpi, make, name="m_synchronous", collect=workers - 1, dedicated=dedicated)
    assert len(updates) == STEPS * workers
    assert {update.staleness for update in updates} == {0}
