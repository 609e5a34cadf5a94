"""Series: one number per case, measure and launch, the small file that keeps them beside a run, and archives."""

import datetime as dt
import json
from dataclasses import replace

import pytest
from contract.archives import case
from contract.archives import run as night

from hpcdl.analysis.over_time import archive as series_file
from hpcdl.analysis.over_time.archive import read_archive, read_series
from hpcdl.analysis.over_time.series import histories
from hpcdl.analysis.run.pooling import runs_in
from hpcdl.report.history import day
from hpcdl.trace import schema
from hpcdl.trace.files import verified_checksum
from hpcdl.trace.recorder import SCHEMA, TraceError

COLLECTIVE = {"suite": "s", "kind": "collective", "case": "ring", "collective": "allreduce", "aggregation": "ring"}
COLLECTIVE |= {"message_bytes": 64, "warmup_steps": 0, "environment_key": "k"}
ENVIRONMENT = {
    "key": "k",
    "date": "2026-11-22T01:00:00+00:00",
    "link_counters": {"a": {"m/1": {"port_xmit_wait": 9}}, "b": None},
    "ranks": [{"hostname": "a", "affinity": "0", "pid": 1}, {"hostname": "b", "affinity": "1", "pid": 2}],
    "failed_cases": [{"case": "broken", "rank": 1, "error": "out of memory"}],
    "cases_not_run": [{"case": "tree", "error": "needs a GPU"}],
}


@pytest.fixture
def run(hand, tmp_path):
    """A collective, a training that reaches its target, one with an error, a wrong one, a simulated one."""
    hand.case([[900.0, 1.0, 2.0, 9.0], [900.0, 3.0, 2.0, 1.0]], **{**COLLECTIVE, "warmup_steps": 1})
    seen = [(1, 0.5, 2.0, 0.5, 0.6, 16, 0.0), (2, 1.0, 5.0, 0.4, 0.8, 32, 0.0)]
    hand.train([[9.0, 9.0, 4.0, 5.0, 6.0]], evaluations=seen, case="t", target_accuracy=0.7)
    for name, fields in (("e", {"error": "broke"}), ("w", {"correct": False}), ("sim", {"network": "gemini"})):
        hand.case([[1.0]], **{**COLLECTIVE, "case": name}, **fields)
    hand.read(ENVIRONMENT)
    return tmp_path


def test_each_case_gives_one_number_per_measure(run):
    series = read_series(run)
    cases = {case.case: case for case in series.cases}
    assert cases["ring"].values == {"time_p50_seconds": pytest.approx(3e-3)}
    assert cases["t"].values == {"step_seconds": pytest.approx(5e-3), "seconds_to_target": 5.0}
    failures = {"ring": "", "t": "", "e": "broke", "w": "a check of the result failed"}
    assert {name: case.failure for name, case in cases.items()} == failures
    assert series.simulated == 1
    assert series.without_result == {"broken": "out of memory", "tree": "needs a GPU"}
    assert (series.suite, series.date, series.complete) == ("s", ENVIRONMENT["date"], True)
    assert series.environment["link_counters"] == ENVIRONMENT["link_counters"]
    assert [sorted(rank) for rank in series.environment["ranks"]] == [["affinity", "hostname"]] * 2


def test_series_are_kept_beside_the_run_unless_they_do_not_fit_and_a_damaged_run_is_refused(run, monkeypatch):
    """Among those that do not fit are other contents with a right checksum."""
    first, file, kept = read_series(run), run / "run.h5", run / "run.series.json"
    with monkeypatch.context() as patched:
        patched.setattr("hpcdl.trace.schema.read", None)
        assert read_series(run) == first
        assert read_series(file).cases == first.cases
    whole = kept.read_bytes()
    contents = json.loads(whole.partition(b"\n")[2])
    bodies = [json.dumps(other) for other in (None, [contents], contents | {"cases": [{}]}, {})]
    heads = [series_file._head(verified_checksum(file), body, SCHEMA) for body in bodies]
    damaged = [whole[: len(whole) // 2] + end for end in (b"{", b"", b"\xff", b"x\n{}")]
    for other in [*damaged, *(f"{head}\n{body}".encode() for head, body in zip(heads, bodies, strict=True))]:
        kept.write_bytes(other)
        assert read_series(run) == first
        assert kept.read_bytes() == whole
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TraceError, match=r"run\.h5: damaged or truncated"):
        read_series(run)


def test_settings_of_sampling_make_no_other_case(hand, tmp_path):
    for number, settings in enumerate(({"repetitions": 5}, {}, {"start": "window"})):
        hand.case([[1.0]], **{**COLLECTIVE, "case": str(number)}, settings={"ranks": 2, **settings})
    hand.read()
    first, second, third = (case.settings for case in read_series(tmp_path).cases)
    assert first == second != third


def test_tables_that_are_not_wanted_are_empty(hand, tmp_path):
    hand.case([[1.0, 2.0]], **COLLECTIVE).read()
    whole, part = schema.read(tmp_path), schema.read(tmp_path, wanted=("ranks",))
    assert (len(whole.steps), len(part.steps)) == (2, 0)
    assert part.ranks.equals(whole.ranks)


def test_a_folder_of_launches_is_its_launches(tmp_path):
    for name in ("launch-10", "launch-2", "launch-1", "launch-x"):
        (tmp_path / name).mkdir()
    assert [launch.name for launch in runs_in(tmp_path)] == ["launch-1", "launch-2", "launch-10"]
    assert runs_in(tmp_path / "launch-1") == [tmp_path / "launch-1"]
    (tmp_path / "run.h5").touch()
    assert runs_in(tmp_path) == [tmp_path]


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, "night"),
        ({"SLURM_JOB_ID": "7"}, "Slurm job 7"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "Slurm job 7_2"),
    ],
)
def test_a_slurm_job_or_a_folder_of_launches_is_one_job(hand, tmp_path, variables, job):
    for number in (1, 2):
        folder = tmp_path / "night" / f"launch-{number}"
        type(hand)(folder).case([[1.0]], **COLLECTIVE).read({"variables": variables})
        assert read_series(folder).job == (job if variables else str(tmp_path / job))
    (tmp_path / "night").rename(tmp_path / "moved")
    assert read_series(tmp_path / "moved" / "launch-1").job == (job if variables else str(tmp_path / "moved"))


def test_runs_read_before_an_interruption_are_kept(tmp_path):
    runs, now = 9, dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
    for number in range(runs):
        folder = tmp_path / f"{number:02d}"
        folder.mkdir()
        schema.merge([], folder / "run.h5", {"date": f"2026-11-{number + 1:02d}T01:00:00+00:00"}, "")

    def interrupt(done, new):
        assert new == runs
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_archive(tmp_path, now, interrupt)
    left = []
    series, skipped, _ = read_archive(tmp_path, now, lambda done, new: left.append(new))
    assert (len(series), skipped) == (runs, [])
    assert [run.date for run in series] == sorted(run.date for run in series)
    assert set(left) <= {*range(runs - 4)}
    read_archive(tmp_path, now, lambda done, new: pytest.fail("all series are kept"))


def test_nights_with_several_offsets_from_utc_are_sorted_by_time():
    """The clocks go back: as text the night at 02:10+01:00 is before the one at 02:50+02:00, 20 minutes earlier."""
    dates = ("2026-10-25T02:50:00+02:00", "2026-10-25T02:10:00+01:00", "2026-10-25T01:30:00+00:00")
    nights = [replace(night(number, [case("c", 1.0)]), date=date) for number, date in enumerate(dates)]
    wrong = ("", "soon", "2026-10-25T01:00:00", "0001-01-01T00:00:00+09:00")
    undated = [replace(nights[0], date=date) for date in wrong]
    (history,) = histories([nights[1], *undated, nights[2], nights[0]])
    assert [job.path for job in history.jobs] == [night.path for night in nights]
    assert [day(job) for job in history.jobs] == [f"2026-10-25 {time}" for time in ("00:50", "01:10", "01:30")]
