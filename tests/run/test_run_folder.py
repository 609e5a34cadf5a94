"""Exit code of a run that another job has begun, and the progress bar."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.launch.mpirun import LAUNCH
from hpcdl.run import run_folder
from hpcdl.run.run_folder import CLEAR, RunFolder, RunOptions, part_name, progress_line
from hpcdl.suite import parse
from hpcdl.trace.recorder import CaseRecord, Evaluation, Recorder
from hpcdl.trace.schema import merge, read, write_part

SUITE = """
[suite]
name = "tiny"
[[case]]
kind = "collective"
collective = "allreduce"
aggregation = "ring"
ranks = 2
message_bytes = 64
"""


JOB = SimpleNamespace(world=SimpleNamespace(size=2), hosts=["here"] * 2, ranks=[{"hostname": "here"}] * 2)
JOB.clock_error_seconds = 0.0


@pytest.mark.parametrize(("correct", "vanishes"), [(True, False), (False, False), (True, True)])
def test_a_resumed_run_fails_if_an_earlier_case_was_wrong_or_vanishes(tmp_path, correct, vanishes):
    suite = parse(SUITE, "tiny.toml")
    (case,) = suite.cases
    (tmp_path / "parts").mkdir()
    record = CaseRecord({**case.fields(), "correct": correct}, [Recorder().pack()] * 2)
    part = tmp_path / "parts" / part_name(0, case)
    write_part(part, record)
    counters = {"here": {"m/1": {"port_xmit_wait": 3}}}
    merge([part], tmp_path / "run.h5", {"link_counters": counters}, SUITE)
    run = RunFolder(suite, tmp_path, JOB, RunOptions(lambda _line: None, mix_environments=True))
    assert not run.todo
    if vanishes:
        part.unlink()
    assert run.finish(counters) is (vanishes or not correct)
    of_both_jobs = {"here": {"m/1": {"port_xmit_wait": 6}}}
    assert vanishes or read(tmp_path).environment["link_counters"] == of_both_jobs


def test_the_line_is_shorter_than_the_terminal_and_keeps_the_time_left_by_the_finished_cases():
    for number, seconds, finished, end in [
        (2, 10.0, 2, "12 cases/min, 10 s left"),
        (3, 900.0, 2, "0.133 cases/min, 8 min left"),  # one case is of an earlier job
        (1, 7200.0, 1, "0.00833 cases/min, 6 h left"),
    ]:
        line = progress_line(number, 4, "ring", seconds, finished)
        assert line.startswith(f"{CLEAR}[")
        assert line.endswith(f"{number}/4 ring  {end}")
        for columns in [40, 80, 120]:
            line = progress_line(number, 4, "a-case-of-a-long-name" * 9, seconds, finished, columns)
            assert len(line.removeprefix(CLEAR)) == columns - 1
            assert columns == 40 or line.endswith(f"...  {end}")


def test_a_training_moves_the_bar_once_a_second_and_shows_its_last_accuracy(tmp_path, monkeypatch, capsys):
    head = '[suite]\nname = "tiny"\n[[case]]\nkind = "train"\nmodel = "lenet5"\ndataset = "digits"\n'
    suite = parse(f"{head}learning_rate = 0.1\nglobal_batch = 48\nranks = 2\nsteps = 40\n", "tiny.toml")
    now = [0.0]
    monkeypatch.setattr(run_folder, "perf_counter", lambda: now[0])
    monkeypatch.setattr(run_folder, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "130")
    run = RunFolder(suite, tmp_path, JOB, RunOptions(lambda _line: None))
    run.begin(0, suite.cases[0])
    assert capsys.readouterr().out.startswith(f"{CLEAR}[{'.' * 20}] 0/1 train-lenet5-")
    times = []
    for step in range(40):
        now[0] = 0.3 * (step + 1)
        run.show_step(step, [Evaluation(10, 0.5, 3.0, 0.3, 0.875, 480)] if step >= 10 else [])
        if line := capsys.readouterr().out:
            times.append(now[0])
            left = round(now[0] / step * (40 - step))
            tested = ", 87.5%" if step >= 10 else ""
            assert line.startswith(f"{CLEAR}[{'#' * (step // 2):.<20}] 0/1 ")
            assert f"  step {step}/40{tested}  " in line
            assert line.endswith(f" cases/min, {left} s left")
    assert np.diff([0, *times]).min() >= 1
    assert len(times) > 8
    run.finish({}, "interrupted")


def test_a_terminal_has_a_line_for_a_launch_and_the_log_one_for_each_case(tmp_path, monkeypatch, capsys):
    suite, now, shown = parse(SUITE, "tiny.toml"), [0.0], []
    (case,) = suite.cases
    monkeypatch.setattr(run_folder, "perf_counter", lambda: now[0])
    monkeypatch.setattr(run_folder, "on_terminal", lambda: True)
    monkeypatch.setenv(LAUNCH, "2 of 3")
    run = RunFolder(suite, tmp_path, JOB, RunOptions(shown.append))
    run.begin(0, case)
    assert f"] 0/1 launch 2 of 3: {case.name}" in capsys.readouterr().out
    now[0] = 20.0
    run.add(0, case, {"correct": True}, [Recorder().pack()] * 2)
    assert shown == []
    assert not run.finish({})
    assert shown == [f"{CLEAR}launch 2 of 3: 1 case, 20 s"]
    assert f"[1/1] {case.name}: 20.0 s\n" in (tmp_path / "log.txt").read_text()
