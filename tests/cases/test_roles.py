"""A key declares its role in one line; names, grouping, rows and the page follow from it."""

import csv
import json
from dataclasses import dataclass

import pytest

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.cases import train
from hpcdl.cases.keys import suite_tables
from hpcdl.cases.keys.key import key
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings

SUITE = """
[suite]
name = "s"
[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
learning_rate = 0.1
ranks = [1, 2]
global_batch = 16
steps = 12
gait = ["walk", "trot"]
"""


def adding(**declared):
    """Return the spec of trainings with one more key."""

    @dataclass(frozen=True, kw_only=True)
    class Spec(TrainSpec):
        gait: str = key("walk", choices=("walk", "trot"), **declared)

    return Spec


def forget():
    suite_tables._declared.cache_clear()
    suite_tables.columns_with.cache_clear()


@pytest.fixture
def run(hand, monkeypatch):
    """Return a function of a spec: the run of a suite whose cases differ in a key that the spec adds."""

    def of(spec):
        monkeypatch.setattr(train, "SPEC", spec)
        forget()
        for case in suite.parse(SUITE, "s.toml").cases:
            hand.case([[20.0] * 12] * case.ranks, **case.fields())
        return hand.read()

    yield of
    forget()


@pytest.mark.parametrize(
    ("spec", "tables", "names", "word"),
    [
        (adding(), 2, {"ring"}, "gait=trot"),
        (adding(role="method"), 1, {"gait trot", "ring"}, "gait trot"),
        (adding(role="sampling"), 1, {"ring"}, None),
    ],
)
def test_a_new_key_is_one_line(run, spec, tables, names, word):
    made = run(spec)
    (found,) = findings([made])
    assert ["gait=trot" in str(case) for case in made.cases["case"]] == [False, True, False, True]
    assert len(found.problems) == tables
    assert {method.name for methods in found.problems for method in methods} == names
    rows = json.loads(render([made], "json"))["cases"]
    assert [row["settings"].get("gait") for row in rows] == [None, "trot", None, "trot"]
    assert [json.loads(row["settings"]) for row in csv.DictReader(render([made], "csv").splitlines())] == [
        row["settings"] for row in rows
    ]
    assert word is None or word in render([made], "md")


def test_a_record_of_an_unknown_key_says_which():
    record = Record(kind="pairwise", settings={"message_bytes": 8, "patern": "pair"})
    with pytest.raises(ValueError, match="patern: unknown key"):
        _ = record.spec
