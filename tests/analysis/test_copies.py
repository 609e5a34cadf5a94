"""A run in any form counts once, wherever several are read, and its copies are named."""

import json
import math
import shutil

import h5py
import numpy as np
import pytest
from conftest import Hand
from contract.traces import changed

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import read_pooled
from hpcdl.analysis.run.scaling import records
from hpcdl.cli import main
from hpcdl.trace.schema import read

CASE = {"suite": "s", "kind": "collective", "collective": "allreduce", "message_bytes": 64}
CASE |= {"dtype": "float32", "warmup_steps": 0}


def night(folder, factor=1.0):
    """Write a run of a collective, a training that diverged, and a case that failed."""
    hand = Hand(folder)
    hand.case([[factor, 1.1 * factor]] * 2, **CASE, aggregation="ring", case="ring")
    undefined = -np.float64(math.nan)  # NaN of arithmetic has a sign, that of JSON has none
    hand.train([[factor] * 6] * 2, case="train", evaluations=[(1, 1.0, factor, undefined, 0.5, 16)])
    hand.case([], **CASE, aggregation="tree", case="tree", ranks=2, error="out of memory")
    hand.read({"key": "k", "date": f"2025-11-0{hand.begin % 9 + 1}T01:00:00+00:00"}, "s")
    return folder


def packed(target, *runs):
    assert main(["report", *map(str, runs), "-o", str(target)]) == 0
    return target


def resumed(run, target):
    """Copy a run whose job went on: a further case in another environment, and so another checksum."""
    hand = Hand(target)
    hand.parts += sorted(run.glob("part*.h5"))
    hand.case([[1.0] * 3] * 2, **CASE, aggregation="native", case="native").read(
        {"key": "k", "date": "2025-11-30T01:00:00+00:00"}, "s"
    )
    return target


FORMS = {
    "itself": lambda run, to: run,
    "file": lambda run, to: run / "run.h5",
    "copy": lambda run, to: shutil.copytree(run, to / "copy"),
    "link": lambda run, to: (to / "link").symlink_to(run) or to / "link",
    "records": lambda run, to: packed(to / "a.json.xz", run),
    "pooled records": lambda run, to: packed(to / "b.json.xz", run, night(to / "other", 1.3)),
    "resumed": lambda run, to: resumed(run, to / "resumed"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_counts_once_in_each_form(tmp_path, capsys, refused, form):
    run = night(tmp_path / "run")
    copy, more = FORMS[form](run, tmp_path), form == "pooled records"
    assert set(read(run).identities) <= {*read(copy).identities} or form == "resumed"
    pooled = read_pooled([run, copy])
    ring = next(record for record in records(launches(pooled)) if record.case == "ring")
    assert ring.launches == 1 + more
    left_out = ": 3 of its 6 cases, and are left out" if more else ", and is left out"
    left_out = ": 2 of its 4 cases, and are left out" if form == "resumed" else left_out
    line = f"{copy} is a copy of {run}{left_out}"
    assert pooled.copies == [line]
    capsys.readouterr()
    for options in ([], ["--together"]):
        assert main(["report", str(run), str(copy), *options]) == 0
        assert f"- {line}." in capsys.readouterr().out
    now = [str(night(tmp_path / f"now{n}", 1.0 + n / 100)) for n in range(2)]
    main(["compare", str(run), str(copy), "--with", *now, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [len(found["baseline"]), len(found["copies"])] == [1 + more + (form == "resumed"), 1]
    assert [one["baseline_launches"] for one in found["measures"] if one["case"] == "ring"] == [1 + more]
    assert "the run is given more than once" in refused("compare", run, "--with", copy)


def test_history_names_the_cases_of_a_copy(tmp_path, capsys):
    (tmp_path / "archive" / "launches").mkdir(parents=True)
    run = night(tmp_path / "archive" / "a")
    resumed(run, tmp_path / "archive" / "b")
    main(["history", str(tmp_path / "archive")])
    assert f"b is a copy of {run}: 2 of its 4 cases, and are left out; skipped" in capsys.readouterr().err


def test_many_copies_have_one_line_with_their_number_and_the_first(tmp_path, capsys):
    (tmp_path / "archive").mkdir()
    run = night(tmp_path / "archive" / "a")
    for number in (1, 2, 3):
        shutil.copytree(run, tmp_path / "archive" / f"b{number}")
        shutil.copytree(run, tmp_path / "runs" / "waiting" / f"launch-{number}")
    main(["history", str(tmp_path / "archive")])
    first = f"{tmp_path / 'archive' / 'b1'} is a copy of {run}"
    line = f"3 runs repeat cases of others, which are left out; the first: {first}; skipped"
    assert [text for text in capsys.readouterr().err.splitlines() if "cop" in text] == [f"hpcdl: warning: {line}"]
    main(["claims", str(tmp_path / "runs")])
    told = [text for text in capsys.readouterr().err.splitlines() if "copy" in text]
    assert len(told) == 1 and ": 2 runs repeat cases" in told[0] and "launch-2 is a copy of" in told[0]


def test_runs_that_differ_in_one_time_are_two(tmp_path):
    run = night(tmp_path / "run")
    other = shutil.copytree(run, tmp_path / "other")
    with changed(other / "run.h5") as file:
        steps = file["cases/000000/steps"]
        rows = steps[()]
        rows["end"] += 1
        steps[...] = rows
    assert isinstance(steps, h5py.Dataset)
    pooled = read_pooled([run, other])
    assert {record.case: record.launches for record in records(launches(pooled))}["ring"] == 2
    assert len(pooled.copies) == 1
