"""Runs of an archive whose series are not kept yet."""

import datetime as dt
from dataclasses import replace

import pytest
from contract.archives import case, run

from hpcdl.analysis.over_time.archive import read_archive
from hpcdl.analysis.over_time.series import histories
from hpcdl.report.history import day
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


def test_nights_with_several_offsets_from_utc_are_sorted_by_time():
    """The clocks go back: as text the night at 02:10+01:00 is before the one at 02:50+02:00, 20 minutes earlier."""
    dates = ("2026-10-25T02:50:00+02:00", "2026-10-25T02:10:00+01:00", "2026-10-25T01:30:00+00:00")
    nights = [replace(run(number, [case("c", 1.0)]), date=date) for number, date in enumerate(dates)]
    undated = [
        replace(nights[0], date=date) for date in ("", "soon", "2026-10-25T01:00:00", "0001-01-01T00:00:00+09:00")
    ]
    (history,) = histories([nights[1], *undated, nights[2], nights[0]])
    assert [job.path for job in history.jobs] == [one.path for one in nights]
    assert [day(job) for job in history.jobs] == [f"2026-10-25 {time}" for time in ("00:50", "01:10", "01:30")]


def test_tables_that_are_not_wanted_are_empty(hand, tmp_path):
    hand.case([[1.0, 2.0]], kind="collective", case="c").read()
    whole, part = schema.read(tmp_path), schema.read(tmp_path, wanted=("ranks",))
    assert (len(whole.steps), len(part.steps)) == (2, 0)
    assert part.ranks.equals(whole.ranks)
