"""A collective case whose vectors lie in a device's memory, on arrays that refuse to meet the host's as CuPy's do."""

from dataclasses import replace

import numpy as np
import pytest
from contract.aggregations import NATIVE
from contract.cases import case_of, ran

from hpcdl.aggregation.parts.collectives import COLLECTIVES, schemes
from hpcdl.cases import collective as case
from hpcdl.nn.backend import backend


class DeviceArray(np.ndarray):
    """Neither sums with host arrays nor is filled by them."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        for one in (*inputs, *out):
            if isinstance(one, np.ndarray) and not isinstance(one, DeviceArray):
                raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        plain = [np.asarray(one).view(np.ndarray) if isinstance(one, DeviceArray) else one for one in inputs]
        if out:
            keywords["out"] = tuple(one.view(np.ndarray) for one in out)
        result = getattr(ufunc, method)(*plain, **keywords)
        return out[0] if out else np.asarray(result).view(DeviceArray)

    def __setitem__(self, key, value):
        if isinstance(value, np.ndarray) and not isinstance(value, DeviceArray):
            raise TypeError("use asarray")
        super().__setitem__(key, value)


DEVICE = replace(
    backend("numpy"),
    name="device",
    device=object(),
    zeros=lambda size, dtype: np.zeros(size, dtype).view(DeviceArray),
    asarray=lambda array: array.copy().view(DeviceArray),
    to_host=lambda array: np.array(array.view(np.ndarray)),
)


def measured(monkeypatch, **keys):
    monkeypatch.setattr(case, "backend", lambda name, **_: DEVICE)
    usual = {"ranks": 3, "message_bytes": 120, "repetitions": 4, "warmup": 1}
    told, recorders = ran(case_of("collective", **usual, **keys))
    assert [len(recorder.steps) for recorder in recorders] == [5, 5, 5]
    return told


@pytest.mark.parametrize("placement", ["in_place", "out_of_place"])
@pytest.mark.parametrize("name", COLLECTIVES)
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

    async def chosen(*_):
        return forgetful, None

    monkeypatch.setattr(case, "_chosen", chosen)
    assert not any(one["correct"] for one in measured(monkeypatch, aggregation="ring"))


def test_nobody_looks_what_came_out_before_all_are_done(monkeypatch):
    """Ranks share cores, and looking takes some from those that are late."""
    log = []

    async def uneven(comm, _buffer):
        for _ in range(20 * comm.rank):
            await comm.compute("late", lambda: None)
        log.append("done")

    async def chosen(*_):
        return uneven, None

    monkeypatch.setattr(case, "_chosen", chosen)
    monkeypatch.setattr(case.Contents, "right", lambda *_: log.append("look") is None)
    measured(monkeypatch, aggregation="ring")
    looks = [number for number, what in enumerate(log) if what == "look"]
    assert len(looks) == 15
    for already, number in enumerate(looks):
        assert log[:number].count("done") >= 3 * (already // 3 + 1)
