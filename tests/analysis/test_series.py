"""Series: one number per case, measure and launch, and the small file that keeps them beside a run."""

import json

import pytest

from hpcdl.analysis.over_time import archive as series_file
from hpcdl.analysis.over_time.archive import read_series
from hpcdl.analysis.run.pooling import runs_in
from hpcdl.trace.files import verified_checksum
from hpcdl.trace.recorder import SCHEMA, TraceError

COLLECTIVE = {
    "suite": "s",
    "kind": "collective",
    "case": "ring",
    "collective": "allreduce",
    "aggregation": "ring",
    "message_bytes": 64,
    "warmup_steps": 1,
    "environment_key": "k",
}
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
    hand.case([[900.0, 1.0, 2.0, 9.0], [900.0, 3.0, 2.0, 1.0]], **COLLECTIVE)
    seen = [(1, 0.5, 2.0, 0.5, 0.6, 16, 0.0), (2, 1.0, 5.0, 0.4, 0.8, 32, 0.0)]
    hand.train([[9.0, 9.0, 4.0, 5.0, 6.0]], evaluations=seen, case="t", target_accuracy=0.7)
    hand.case([[1.0]], **{**COLLECTIVE, "case": "e", "warmup_steps": 0}, error="broke")
    hand.case([[1.0]], **{**COLLECTIVE, "case": "w", "warmup_steps": 0}, correct=False)
    hand.case([[1.0]], **{**COLLECTIVE, "case": "sim", "warmup_steps": 0}, network="gemini")
    hand.read(ENVIRONMENT)
    return tmp_path


def test_each_case_gives_one_number_per_measure(run):
    found = read_series(run)
    cases = {one.case: one for one in found.cases}
    assert cases["ring"].values == {"time_p50_seconds": pytest.approx(3e-3)}
    assert cases["t"].values == {"step_seconds": pytest.approx(5e-3), "seconds_to_target": 5.0}
    assert (cases["ring"].failure, cases["e"].failure) == ("", "broke")
    assert cases["w"].failure == "a check of the result failed"
    assert "sim" not in cases
    assert found.simulated == 1
    assert found.without_result == {"broken": "out of memory", "tree": "needs a GPU"}
    assert (found.suite, found.date, found.complete) == ("s", ENVIRONMENT["date"], True)
    assert found.environment["link_counters"] == ENVIRONMENT["link_counters"]


def test_series_are_kept_beside_the_run_and_equal(run, monkeypatch):
    first = read_series(run)
    assert (run / "run.series.json").exists()
    monkeypatch.setattr("hpcdl.trace.schema.read", None)
    assert read_series(run) == first
    assert read_series(run / "run.h5").cases == first.cases


@pytest.mark.parametrize("damage", ["{", "", "\xff", "x\n{}"])
def test_kept_series_that_do_not_fit_are_computed_anew(run, damage):
    first = read_series(run)
    kept = run / "run.series.json"
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2] + damage.encode("latin-1"))
    assert read_series(run) == first
    assert kept.read_bytes() == whole


@pytest.mark.parametrize(
    "change", [lambda _: None, lambda found: [found], lambda found: found | {"cases": [{}]}, lambda _: {}]
)
def test_kept_series_with_other_contents_and_a_right_checksum_are_computed_anew(run, change):
    first = read_series(run)
    kept = run / "run.series.json"
    body = json.dumps(change(json.loads(kept.read_text().partition("\n")[2])))
    kept.write_text(f"{series_file._head(verified_checksum(run / 'run.h5'), body, SCHEMA)}\n{body}")
    assert read_series(run) == first


def test_a_damaged_run_is_refused_although_its_series_are_kept(run):
    read_series(run)
    file = run / "run.h5"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TraceError, match=r"run\.h5: damaged or truncated"):
        read_series(run)


def test_settings_of_sampling_make_no_other_case(hand, tmp_path):
    for number, settings in enumerate(
        ({"ranks": 2, "repetitions": 5}, {"ranks": 2}, {"ranks": 2, "start": "window"})
    ):
        hand.case([[1.0]], **{**COLLECTIVE, "case": str(number), "warmup_steps": 0}, settings=settings)
    hand.read()
    first, second, third = (one.settings for one in read_series(tmp_path).cases)
    assert first == second != third


def test_a_folder_of_launches_is_its_launches(tmp_path):
    for name in ("launch-10", "launch-2", "launch-1", "launch-x"):
        (tmp_path / name).mkdir()
    assert [one.name for one in runs_in(tmp_path)] == ["launch-1", "launch-2", "launch-10"]
    assert runs_in(tmp_path / "launch-1") == [tmp_path / "launch-1"]
    (tmp_path / "run.h5").touch()
    assert runs_in(tmp_path) == [tmp_path]


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({"SLURM_JOB_ID": "7"}, "Slurm job 7"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}, "Slurm job 7_2"),
    ],
)
def test_a_slurm_job_is_one_job(hand, tmp_path, variables, job):
    hand.case([[1.0]], **{**COLLECTIVE, "warmup_steps": 0}).read({"variables": variables})
    assert read_series(tmp_path).job == job


def test_launches_of_one_folder_are_one_job(hand, tmp_path):
    jobs = set()
    for number in (1, 2):
        folder = tmp_path / "night" / f"launch-{number}"
        folder.mkdir(parents=True)
        type(hand)(folder).case([[1.0]], **{**COLLECTIVE, "warmup_steps": 0}).read()
        jobs.add(read_series(folder).job)
    assert jobs == {str(tmp_path / "night")}
    (tmp_path / "night").rename(tmp_path / "moved")
    assert read_series(tmp_path / "moved" / "launch-1").job == str(tmp_path / "moved")
