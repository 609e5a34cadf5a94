"""Collective cases compare with what the collective computes, also on arrays that refuse to meet the host's as CuPy's do."""

from dataclasses import replace

import numpy as np
import pytest
from contract.aggregations import NATIVE, called
from contract.cases import case_of, ran
from contract.device import OnDevice
from contract.operands import as_wanted

from hpcdl.aggregation.parts.traits import ONE_VECTOR, schemes
from hpcdl.cases import collective as case
from hpcdl.cases.parts.measuring import Contents, alike, reals
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.backend import backend

DEVICE = replace(
    backend("numpy"),
    name="device",
    device=object(),
    zeros=lambda size, dtype: OnDevice(np.zeros(size, dtype)),
    asarray=lambda array: OnDevice(array.copy()),
    to_host=lambda array: array.held.copy(),
)


def measured(monkeypatch, own=None, **keys):
    """Return what the record gets of a collective on the device; ``own`` takes the place of its scheme."""
    monkeypatch.setattr(case, "backend", lambda name, **_: DEVICE)
    if own:

        async def chosen(*_):
            return own, None

        monkeypatch.setattr(case, "_chosen", chosen)
    usual = {"ranks": 3, "message_bytes": 120, "repetitions": 4, "warmup": 1}
    told, recorders = ran(case_of("collective", **usual, **keys))
    assert [len(recorder.steps) for recorder in recorders] == [5, 5, 5]
    return told


@pytest.mark.parametrize("placement", ["in_place", "out_of_place"])
@pytest.mark.parametrize("name", ONE_VECTOR)
def test_vectors_on_a_device_are_summed_and_checked_there(monkeypatch, name, placement):
    for scheme in set(schemes(name)) & {"ring", "tree", "direct", "bruck", "native", "native_persistent"}:
        told = measured(monkeypatch, collective=name, aggregation=scheme, placement=placement)
        assert all(one["correct"] for one in told)
        copied = scheme not in NATIVE or name == "broadcast"
        assert {one.get("copied") for one in told} == {None if placement == "in_place" else copied}
        assert all(one.get("same_bits") is not False for one in told)


def test_a_wrong_sum_on_a_device_is_noticed(monkeypatch):
    async def forgetful(_comm, buffer):
        buffer += 1

    assert not any(one["correct"] for one in measured(monkeypatch, forgetful, aggregation="ring"))


def test_nobody_looks_what_came_out_before_all_are_done(monkeypatch):
    """Ranks share cores, and looking takes some from those that are late."""
    log = []

    async def uneven(comm, _buffer):
        for _ in range(20 * comm.rank):
            await comm.compute("late", lambda: None)
        log.append("done")

    monkeypatch.setattr(case.Contents, "right", lambda *_: log.append("look") is None)
    measured(monkeypatch, uneven, aggregation="ring")
    looks = [number for number, what in enumerate(log) if what == "look"]
    assert len(looks) == 15
    for already, number in enumerate(looks):
        assert log[:number].count("done") >= 3 * (already // 3 + 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("collective", ONE_VECTOR)
def test_a_native_s_result_is_right_and_only_where_every_number_is(collective, ranks):
    """Of what the collective settles: held against index arithmetic of the tests' own."""
    for size in (0, ranks, 4 * ranks):

        async def program(comm, size=size):
            held = Contents(collective, comm, size, "float32")
            buffer = held.before.copy()
            await called(collective, "native", comm, buffer)
            return held, held.before, buffer

        every, *vectors = zip(*in_process(ranks).run(program), strict=True)
        given, good = map(np.array, vectors)
        assert all(held.right(buffer) for held, buffer in zip(every, good, strict=True))
        for rank, place in np.ndindex(good.shape):
            bad = good.copy()
            bad[rank, place] += 1
            expected = collective == "allreduce" or not as_wanted(collective, bad, given)
            assert every[rank].right(bad[rank]) is not expected


@pytest.mark.parametrize("ranks", [2, 5])
def test_one_bit_on_one_rank_is_noticed(ranks):
    def same(changed):
        async def program(comm):
            vector = reals(0, 100, "float32")
            if comm.rank == changed:
                vector.view(np.uint32)[50] ^= 1
            return await alike(comm, vector)

        return in_process(ranks).run(program)

    assert same(None) == [True] * ranks
    assert same(ranks - 1) == [False] * ranks
