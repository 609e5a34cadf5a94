"""Runs of an archive whose series are not kept yet."""

import datetime as dt

import pytest

from hpcdl.analysis.over_time.archive import read_archive
from hpcdl.trace import schema
from hpcdl.trace.schema import merge

RUNS = 9
NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)


@pytest.fixture
def archive(tmp_path):
    for number in range(RUNS):
        folder = tmp_path / f"{number:02d}"
        folder.mkdir()
        merge([], folder / "run.h5", {"date": f"2026-11-{number + 1:02d}T01:00:00+00:00"}, "")
    return tmp_path


def test_runs_read_before_an_interruption_are_kept(archive):
    def interrupt(done, runs):
        assert runs == RUNS
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_archive(archive, NOW, interrupt)
    left = []
    runs, skipped, _ = read_archive(archive, NOW, lambda done, runs: left.append(runs))
    assert (len(runs), skipped) == (RUNS, [])
    assert [run.date for run in runs] == sorted(run.date for run in runs)
    assert set(left) <= {*range(RUNS - 4)}
    read_archive(archive, NOW, lambda done, runs: pytest.fail("all series are kept"))


def test_tables_that_are_not_wanted_are_empty(hand, tmp_path):
    hand.case([[1.0, 2.0]], kind="collective", case="c").read()
    whole, part = schema.read(tmp_path), schema.read(tmp_path, wanted=("ranks",))
    assert (len(whole.steps), len(part.steps)) == (2, 0)
    assert part.ranks.equals(whole.ranks)
