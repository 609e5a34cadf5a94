"""Vectors that several processes map, and the windows on them."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcdl.fabric.shared_memory import OneProcess, SharedMemory
from hpcdl.fabric.vectors import Window, disseminate, phantom
from hpcdl.fabric.virtual.clocks import in_process

OTHER = """
import sys
import numpy as np
from hpcdl.fabric.shared_memory import SharedMemory
memory = SharedMemory()
place = np.array(list(map(int, sys.argv[1].split(","))))
vector = memory.map(place, np.empty(int(sys.argv[2]), np.float32))
print(vector.tolist())
vector *= 2
"""


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_another_process_reads_and_writes_a_part():
    memory = SharedMemory()
    vector = memory.allocate(1000)
    vector[:] = np.arange(1000)
    part = vector[10:13]
    place = ",".join(map(str, memory.place(part)))
    said = subprocess.run([sys.executable, "-c", OTHER, place, "3"], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "[10.0, 11.0, 12.0]"
    assert part.tolist() == [20.0, 22.0, 24.0]
    assert (vector[9], vector[13]) == (9, 13)


def test_the_file_lives_as_long_as_an_array_on_it():
    memory = SharedMemory()
    before = descriptors()
    part = memory.allocate(100)[90:]
    gc.collect()
    assert descriptors() > before
    part[:] = 7
    assert memory.place(part)[-1] == 1
    del part
    gc.collect()
    assert descriptors() == before


def test_vectors_begin_with_zeros_and_other_memory_and_other_hosts_are_out_of_reach():
    memory = SharedMemory()
    for size in (0, 5):
        vector = memory.allocate(size, np.float64)
        assert vector.tolist() == [0.0] * size
        assert memory.map(memory.place(vector), vector).size == size
    vector = memory.allocate(10)
    assert memory.place(np.zeros(10, np.float32))[-1] == 0
    assert memory.place(vector[::2])[-1] == 0
    elsewhere = memory.place(vector)
    elsewhere[0] += 1
    with pytest.raises(ValueError, match="different hosts"):
        memory.map(elsewhere, vector)
    gone = memory.place(vector)
    gone[1:4] = 1 << 30, 99, 0
    with pytest.raises(ValueError, match="cannot be mapped"):
        memory.map(gone, vector)


def test_what_is_nobodys_any_more_is_forgotten_in_one_process():
    memory = OneProcess()
    vector = memory.allocate(3)
    place = memory.place(vector)
    assert memory.map(place, vector) is vector
    del vector
    gc.collect()
    with pytest.raises(KeyError):
        memory.map(place, phantom(3))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 9, 16])
@pytest.mark.parametrize("words", [0, 3])
def test_dissemination_tells_everybody_everything(ranks, words):
    async def program(comm):
        return await disseminate(comm, np.arange(words) + 100 * comm.rank)

    world = in_process(ranks, seed=ranks)
    for table in world.run(program):
        assert table.tolist() == [(np.arange(words) + 100 * rank).tolist() for rank in range(ranks)]
    assert world.messages == [(ranks - 1).bit_length()] * ranks


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_before_a_fence_is_there_after_it(seed):
    async def program(comm):
        buffer = np.full(3, float(comm.rank))
        async with Window(comm, buffer) as window:
            await comm.compute("write", lambda: window.vectors[comm.rank].__setitem__(1, 10 + comm.rank))
            await window.fence()
            seen = [vector[1] for vector in window.vectors]
        buffer[:] = -1  # nobody reads it any more
        return seen

    assert in_process(5, seed).run(program) == [[10, 11, 12, 13, 14]] * 5
