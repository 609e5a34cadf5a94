"""Runs of an archive whose series are not kept yet."""

import io

import pytest

from hpcdl.analysis.over_time.archive import read_archive
from hpcdl.run import progress as progress_lines
from hpcdl.trace import schema
from hpcdl.trace.schema import merge

RUNS = 9


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
        read_archive(archive, interrupt)
    left = []
    runs, skipped = read_archive(archive, lambda done, runs: left.append(runs))
    assert (len(runs), skipped) == (RUNS, [])
    assert [run.date for run in runs] == sorted(run.date for run in runs)
    assert set(left) <= {*range(RUNS - 4)}
    read_archive(archive, lambda done, runs: pytest.fail("all series are kept"))


def test_tables_that_are_not_wanted_are_empty(hand, tmp_path):
    hand.case([[1.0, 2.0]], kind="collective", case="c").read()
    whole, part = schema.read(tmp_path), schema.read(tmp_path, wanted=("ranks",))
    assert (len(whole.steps), len(part.steps)) == (2, 0)
    assert part.ranks.equals(whole.ranks)


@pytest.mark.parametrize(("terminal", "written"), [(True, ["1 of 3", "3 of 3"]), (False, ["1 of 3", "3 of 3"])])
def test_progress_is_a_line(monkeypatch, terminal, written):
    """A terminal's line is replaced and at the end removed; a log has one every ten seconds."""
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    now = [0.0]
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: now[0])
    progress = progress_lines.ReadingProgress(stream)
    for done, seconds in ((1, 11), (2, 11.1), (3, 22)):
        now[0] = seconds
        progress(done, 3)
    lines = stream.getvalue().split("\r\x1b[K")[1:-1] if terminal else stream.getvalue().splitlines()
    assert [line.removeprefix("hpcdl: ")[:6] for line in lines] == written
