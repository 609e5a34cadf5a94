"""Shared memory of killed MPI jobs is removed, shared memory of running jobs is not."""

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcdl.launch.mpirun import remove_stale_segments


@pytest.fixture
def memory():
    """Return a folder in /dev/shm, because not every file system supports leases."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def segment(folder, name):
    file = folder / name
    file.write_bytes(bytes(mmap.PAGESIZE))
    return file


def test_segments_that_no_process_uses_are_removed(memory):
    for name in ("mpich_shm_1716d55c_0", "sm_segment.host.0.24330001.1"):
        segment(memory, name)
    other = segment(memory, "psm2_shm.1")
    assert remove_stale_segments(memory) == 2
    assert list(memory.iterdir()) == [other]


MAPS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 0)
os.close(file)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_a_segment_that_a_process_has_mapped_stays_until_it_ends(memory):
    """MPI libraries close the file once they have mapped it."""
    mapped = segment(memory, "mpich_shm_1_0")
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, mapped], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "mapped\n"
        assert remove_stale_segments(memory) == 0
        assert mapped.exists()
        process.kill()
    assert remove_stale_segments(memory) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_segment_of_another_user_stays(memory):
    theirs = segment(memory, "mpich_shm_1_0")
    os.chown(theirs, 12345, 12345)
    assert remove_stale_segments(memory) == 0
    assert theirs.exists()
