"""What NCCL is asked for, by one that only takes notes."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from hpcdl.fabric.device.nccl import Nccl


class Group:
    asked = ()

    def __init__(self, size, name, rank):
        pass

    def allReduce(self, *arguments):
        Group.asked = arguments


@pytest.fixture
def nccl(monkeypatch):
    kinds = {f"NCCL_{name}": name for name in ("FLOAT32", "FLOAT64", "INT32", "INT64", "SUM")}
    library = SimpleNamespace(available=True, get_unique_id=lambda: 7, NcclCommunicator=Group, **kinds)
    stream = SimpleNamespace(ptr=99, record=lambda: SimpleNamespace(done=True))
    cuda = ModuleType("cupy.cuda")
    cuda.nccl = library
    cuda.runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    cuda.Device = lambda: SimpleNamespace(pci_bus_id="0")
    cuda.get_current_stream = lambda: stream
    cupy = ModuleType("cupy")
    cupy.cuda = cuda
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    return Nccl(0, 1, lambda mine: [mine], lambda name: name)


def vector(address):
    return SimpleNamespace(data=SimpleNamespace(ptr=address), size=5, dtype=np.dtype("float32"))


@pytest.mark.parametrize(("operand", "read"), [(None, 20), (vector(10), 10)])
def test_it_reads_the_operand_and_writes_the_result(nccl, operand, read):
    done = nccl.allreduce(operand, vector(20))
    assert Group.asked == (read, 20, 5, "FLOAT32", "SUM", 99)
    assert done()
