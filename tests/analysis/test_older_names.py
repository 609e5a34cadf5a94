"""Runs and archives of schema 6 are read, with the present names of strategies, and continue their series."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import registry, suite
from hpcdl.analysis.over_time.archive import read_series
from hpcdl.commands.parts.options import read_accepted
from hpcdl.registry import label, parts
from hpcdl.trace.files import STRATEGY_SETTINGS, spelled_now
from hpcdl.trace.schema import read

KEPT = Path(__file__).parent / "schema_6"
"""A run on two ranks, by the last version in which ``asynchronous`` had all settings, and its series."""
PRESENT = """
[suite]
name = "nights"
question = "Which strategy is fastest?"

[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
training = [
    {name = "asynchronous", servers = 2, delay_compensation = "constant"},
    {name = "softsync", collect = 1, scale_rate = "staleness"},
    {name = "m_synchronous", collect = "all"},
    {name = "ssp", bound = 1, push = "updates"},
    {name = "downpour", servers = 2, overlap = true, n_push = 2},
]
learning_rate = 0.05
ranks = 2
global_batch = 8
steps = 6
trace = "steps"
"""
"""The suite of that run, as it is written now."""


@pytest.fixture
def night(tmp_path):
    """Return a copy of the kept run."""
    return Path(shutil.copytree(KEPT, tmp_path / "night"))


def test_a_run_has_the_names_and_settings_of_the_suite_as_it_is_written_now(night):
    for fields, case in zip(read(night).described, suite.parse(PRESENT, "now").cases, strict=True):
        now = case.fields()
        assert [fields[name] for name in ("case", "training")] == [now[name] for name in ("case", "training")]
        assert json.loads(fields["settings"]) == json.loads(now["settings"])
        assert fields["served"]


def test_kept_series_are_those_of_the_run_and_continue_in_the_present_suite(night, monkeypatch):
    file = night / "run.series.json"
    file.write_text(file.read_text().replace("of schema 6:", "of schema 5:", 1))  # which no version reads
    monkeypatch.setattr("hpcdl.trace.schema.read", None)  # the kept series are used
    kept = read_series(night, any_schema=True)
    monkeypatch.undo()
    computed = read_series(night)
    assert kept.cases == tuple(replace(case, identity="") for case in computed.cases)
    assert (kept.date, kept.without_result) == (computed.date, computed.without_result)
    for series, case in zip(kept.cases, suite.parse(PRESENT, "now").cases, strict=True):
        now = {key: label(value) for key, value in json.loads(case.fields()["settings"]).items()}
        assert (series.case, json.loads(series.settings)) == (case.name, now)
    assert all(series.values for series in kept.cases[:4])


def test_an_acceptance_of_an_older_name_is_that_of_the_present_one(tmp_path):
    file = tmp_path / "accept.toml"
    case = '"*asynchronous(collect=2)*"'
    file.write_text(f'[[accept]]\ncase = {case}\nreason = "known"\nexpires = 2099-01-01\nchange = "10%"\n')
    (accepted,) = read_accepted(file)
    assert accepted.matches("train-lenet5-digits-softsync(collect=2)-p4")


def test_each_combination_has_its_strategy():
    for older, now in [
        ("train-asynchronous-p4", "train-asynchronous-p4"),
        ("asynchronous(collect=1,servers=1)", "asynchronous(servers=1)"),
        ("a-asynchronous(collect=all,bound=0)-p4", "a-ssp(collect=all,bound=0)-p4"),
        ("asynchronous(collect=8,stale=apply)", "softsync(collect=8)"),
        ("asynchronous(stale=drop)", "m_synchronous(collect=1)"),
        ("asynchronous(bound=3,n_fetch=2)", "asynchronous(bound=3,n_fetch=2)"),  # of no strategy any more
        ("asynchronous(push=updates)", "asynchronous(push=updates)"),
        ("mine:asynchronous(collect=2)", "mine:asynchronous(collect=2)"),
        ('{"training": {"name": "asynchronous", "n_push": 5}}', '{"training": {"name": "downpour", "n_push": 5}}'),
    ]:
        assert spelled_now(older) == now
        assert spelled_now(now) == now
    for name in STRATEGY_SETTINGS:
        assert registry.settings_of(registry.find("training", name)).keys() == STRATEGY_SETTINGS[name] - {"stale"}


def test_a_label_comes_apart_into_what_it_was_made_of_and_other_text_is_a_name():
    for choice in [
        {"name": "ring"},
        {"name": "tree", "arity": 4},
        {"name": "hierarchical", "inner": {"name": "tree", "arity": 3, "deep": True}, "outer": "ring"},
        {"name": "schedule", "steps": [1, 2, 3], "factor": 0.5},
    ]:
        settings = {key: label(value) for key, value in choice.items() if key != "name"}
        assert parts(label(choice)) == (choice["name"], settings)
    for text in ["", "SGD (old)", "a(b", "a(b)"]:
        assert parts(text) == (text, {})
