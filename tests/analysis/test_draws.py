"""Launches draw their own random times and pauses; a simulated case with the times of another launch is no launch."""

from pathlib import Path

import numpy as np
import pytest

from hpcdl import suite
from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import read_pooled
from hpcdl.analysis.run.scaling import records
from hpcdl.cases.keys.key import varies
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.faults import Delays, Straggler
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.report.run.warnings import warnings
from hpcdl.run.run_folder import draw_of
from hpcdl.trace.recorder import CaseRecord, Recorder
from hpcdl.trace.schema import merge, write_part
from hpcdl.training.parts.journal import Journal

SUITE = """
[suite]
name = "s"
[[case]]
kind = "replay"
model = "lenet5"
ranks = 3
batch_per_rank = 4
flops = 1e9
network = "ethernet-1g"
jitter = [0.0, 0.4]
[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
learning_rate = 0.01
ranks = 2
batch_per_rank = 8
steps = 9
flops = 1e9
network = "ethernet-1g"
jitter = [0.0, 0.4]
"""


def launched(folder, draw):
    """Write a run of the suite as a launch whose number is ``draw``; return the folder."""
    parts = []
    for number, case in enumerate(suite.parse(SUITE, "s.toml").cases):
        recorder = Recorder(events=False)
        journal = Journal(recorder, lambda: Counters(0, 0, 0, 0, 0), draw=draw)
        found = in_process(1).run(case.module.program(case.spec, journal))[0]
        random = {"draw": draw} if varies(case.spec) else {}
        packed = [one.pack() for one in recorder.virtual or [recorder]]
        folder.mkdir(exist_ok=True)
        parts.append(folder / f"{number}.h5")
        write_part(parts[-1], CaseRecord({**case.fields(), **found, **random}, packed))
    merge(parts, folder / "run.h5", {"key": "k", "date": f"2025-11-01T01:00:0{folder.name[-1]}+00:00"}, SUITE)
    return folder


def test_launches_count_by_what_they_drew(tmp_path):
    runs = [launched(tmp_path / f"launch-{number + 1}", draw) for number, draw in enumerate((0, 1, 2, 2))]
    pooled = read_pooled(runs)
    assert not pooled.copies, "equal simulated times make no copy of a run"
    found = records(launches(pooled))
    assert [record.launches for record in found] == [1, 3, 1, 3]
    for record in found[1::2]:
        assert len({*record.launch_seconds}) == 3
        assert record.step_seconds_low < min(record.launch_seconds) < max(record.launch_seconds)
        assert record.draw is None
    assert found[0].step_seconds_low is None, "one exact time"
    (line,) = [line for line in warnings(pooled, found) if "Random times" in line]
    assert line.startswith("Random times of 2 cases are the same as in an earlier launch: simulated cases count")
    assert sorted(set(pooled.steps["case_index"])) == list(range(len(pooled.described)))
    alone = read_pooled([runs[2]])
    assert [record.draw for record in records(launches(alone))] == [None, 2, None, 2]
    assert not [line for line in warnings(alone, []) if "Random times" in line]


@pytest.mark.parametrize(
    ("folder", "task", "draw"),
    [("launch-3", "", 2), ("runs/launch-1", "7", 0), ("run", "4", 3), ("run", "", 0), ("launch-x", "y", 0)],
)
def test_a_launch_has_the_draw_of_its_number_also_when_it_is_resumed(folder, task, draw):
    assert draw_of(Path(folder).absolute(), {"SLURM_ARRAY_TASK_ID": task}) == draw


def test_pauses_of_a_rank_follow_seed_and_draw():
    straggler = Straggler(rank=0, probability=0.5, seconds=1)

    def pauses(*numbers):
        delays = Delays(straggler, 0, *numbers)
        return [delays.before("input") for _ in range(64)]

    assert pauses(1) == pauses(1, 0) != pauses(1, 1) != pauses(1, 11)
    assert np.mean(pauses(1, 1)) == pytest.approx(0.5, abs=0.2)
