"""Shared memory of killed jobs: removed, and never that of a job that runs."""

import os
import tempfile
import time
from pathlib import Path

from hpcdl.launch import segments


def test_only_new_segments_of_a_library_that_no_process_has_open_are_removed(tmp_path, monkeypatch):
    names = ["mpich_shm_older", "mpich_shm_dead", "ucx_shm_posix_dead", "mpich_shm_open", "sm_segment.vm.0", "x"]
    older, *dead, opened, linked, _ = names
    with tempfile.TemporaryDirectory(dir=segments.FOLDER) as folder:  # a temporary folder may lack leases
        monkeypatch.setattr(segments, "FOLDER", Path(folder))
        for name in names:
            Path(folder, name).write_bytes(b"x")
        os.utime(Path(folder, older), (0, 0))
        Path(folder, linked).unlink()
        Path(folder, linked).symlink_to(tmp_path)
        with Path(folder, opened).open():
            segments.remove(tmp_path / "status", time.time() - 60)
        assert {path.name for path in Path(folder).iterdir()} == {*names} - {*dead}
