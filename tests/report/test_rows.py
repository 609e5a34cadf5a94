"""Rows of CSV and JSON say of which run they are, when, where and by what it was measured, and fit the JSON Schema."""

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

import hpcdl
from hpcdl.report.render import render
from hpcdl.trace.schema import read

SCHEMA = json.loads((Path(hpcdl.__file__).parent / "report/schema.json").read_text(encoding="utf-8"))
ENVIRONMENT = {
    "date": "2026-01-02T03:04:05+00:00",
    "mpi": {"library": "MPICH", "version": "5.0.2"},
    "software": {"hpcdl": "0.1.0"},
    "git": {"commit": "0123abc", "changed_files": 0},
    "variables": {"SLURM_JOB_ID": "41"},
    "ranks": [{"hostname": "n1"}, {"hostname": "n1"}, {"hostname": "n2"}, {"hostname": "n3"}],
    "key": "a1b2c3d4e5f6",
}


def rows(*runs, form="json"):
    text = render(list(runs), form)
    return json.loads(text)["cases"] if form == "json" else list(csv.DictReader(io.StringIO(text)))


def test_a_row_says_where_it_is_from(hand):
    """Changed files and a task of a job array show, too."""
    run = hand.train([[2.0] * 8] * 3).train([[2.0] * 8]).read(ENVIRONMENT)
    three, one = rows(run)
    origin = {
        "date": "2026-01-02T03:04:05+00:00",
        "hosts": "n1 n2",
        "mpi_library": "MPICH",
        "mpi_version": "5.0.2",
        "hpcdl_version": "0.1.0",
        "commit": "0123abc",
        "environment_key": "a1b2c3d4e5f6",
        "slurm_job": "41",
    }
    assert {name: three[name] for name in origin} == origin
    assert one["hosts"] == "n1"
    changed = {"git": {"commit": "0123abc", "changed_files": 2}}
    array = {"variables": {"SLURM_JOB_ID": "43", "SLURM_ARRAY_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": "2"}}
    row, _ = rows(hand.read(ENVIRONMENT | changed | array))
    assert (row["commit"], row["slurm_job"]) == ("0123abc-dirty", "41_2")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_runs_of_the_same_name_are_told_apart_by_their_folders(hand, tmp_path, form):
    for night in ("monday", "tuesday"):
        type(hand)(tmp_path / night / "launch-1").train([[2.0] * 8]).read()
    one, other = (read(tmp_path / night / "launch-1") for night in ("monday", "tuesday"))
    assert [row["run"] for row in rows(one, other, form=form)] == ["monday/launch-1", "tuesday/launch-1"]
    assert [row["run"] for row in rows(other, form=form)] == ["launch-1"]
    assert "# hpcdl: tuesday/launch-1\n" in render([one, other], "md")


def test_a_run_has_the_name_of_its_folder_however_it_is_given(hand, monkeypatch):
    hand.train([[2.0] * 8]).read()
    monkeypatch.chdir(hand.folder)
    for given in (".", "run.h5", hand.folder):
        assert [row["run"] for row in rows(read(given))] == [hand.folder.name]


def test_a_frame_has_the_columns_of_the_kinds_in_its_runs_or_all(hand):
    hand.train([[2.0] * 8] * 2)
    training = hpcdl.summary(hand.read())
    hand.case([[1.0] * 8] * 2, kind="collective", collective="allreduce", message_bytes=64, aggregation="ring")
    both, every = hpcdl.summary(hand.read()), hpcdl.summary(hand.read(), all_columns=True)
    assert not both.isna().all().any()
    assert {"step_seconds", "images_per_second"} <= {*training.columns} < {*both.columns} < {*every.columns}
    assert {"time_p50_seconds", "busbw_bytes_per_second", "message_bytes"} <= {*both.columns} - {*training.columns}
    assert {"seconds_to_target", "stages"} <= {*every.columns} - {*both.columns}
    assert [*every.columns] == [*rows(hand.read())[0]]
    assert list(both["step_seconds"].isna()) == [False, True]


def test_a_document_is_valid_and_a_wrong_type_is_not(illustrated_run):
    text = render([illustrated_run], "json")
    document = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    assert {"train", "collective", "pairwise"} == {case["kind"] for case in document["cases"]}
    for column, value in (("ranks", "4"), ("kind", "other"), ("step_seconds", "1 s")):
        wrong = json.loads(text)
        wrong["cases"][0][column] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)
