"""Specs: what a suite writes becomes objects once, records have it as JSON, and a key declares its role in one line."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.conftest import CASES, text_of

import hpcdl
from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.cases import train
from hpcdl.cases.keys import suite_tables
from hpcdl.cases.keys.key import given, key, restored
from hpcdl.cases.keys.suite_tables import module_of
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings

SUITES = sorted((Path(hpcdl.__file__).parent.parent / "suites").glob("*.toml"))
LEAST = {**CASES["train"], "dataset": {"name": "synthetic", "shape": [8, 8, 1]}}
del LEAST["kind"]


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_settings_of_a_record_make_the_spec_again(path, monkeypatch):
    # no check: datasets may be absent
    unchecked = lambda case: SimpleNamespace(identity=module_of(case.kind).identity, CHECKS=())
    monkeypatch.setattr(suite.Case, "module", property(unchecked))
    for case in suite.load(path, full=True).cases:
        text = json.dumps(given(case.spec))
        assert restored(type(case.spec), json.loads(text)) == case.spec


def test_the_record_has_what_differs_from_the_defaults_as_the_suite_writes_it():
    """What it names is made once, and imported only if a suite or an option names it."""
    whole = {
        **LEAST,
        "training": {"name": "asynchronous", "servers": 1},
        "straggler": {"rank": 1, "factor": 3},
        "failure": {"rank": 1, "step": 2},
        "shares": {"weights": [3, 1]},
        "quantization": {"weights": 8, "activations": 4},
        "pruning": {"sparsity": 0.5},
    }
    assert given(restored(TrainSpec, whole)) == whole
    spec = restored(TrainSpec, LEAST)
    assert restored(TrainSpec, {**LEAST, "seed": 1, "aggregation": {"name": "ring"}}) == spec
    assert spec.data is spec.data is restored(TrainSpec, {**LEAST, "ranks": 4}).data
    assert spec.layers is spec.layers
    assert (spec.images_per_step, spec.planned_steps, spec.workers) == (64, 3, range(2))
    spec = restored(TrainSpec, {**LEAST, "training": "no_such_module:own"})
    assert spec.training.name == "no_such_module:own"
    with pytest.raises(ValueError, match="which only a suite or an option may name"):
        spec.training.bind()
    with pytest.raises(ValueError, match="patern: unknown key"):
        _ = Record(kind="pairwise", settings={"message_bytes": 8, "patern": "pair"}).spec


SUITE = text_of({**CASES["train"], "ranks": [1, 2], "global_batch": 16, "steps": 12, "gait": ["walk", "trot"]})


def forget():
    suite_tables._declared.cache_clear()
    suite_tables.columns_with.cache_clear()


@pytest.fixture
def run(hand, monkeypatch):
    """run(declared): the run of a suite whose cases differ in a key that is declared so."""

    def of(declared):
        @dataclass(frozen=True, kw_only=True)
        class Spec(TrainSpec):
            gait: str = key("walk", choices=("walk", "trot"), **declared)

        monkeypatch.setattr(train, "SPEC", Spec)
        forget()
        for case in suite.parse(SUITE, "s.toml").cases:
            hand.case([[20.0] * 12] * case.ranks, **case.fields())
        return hand.read()

    yield of
    forget()


@pytest.mark.parametrize(
    ("declared", "tables", "names", "word"),
    [
        ({}, 2, {"ring"}, "gait=trot"),
        ({"role": "method"}, 1, {"gait trot", "ring"}, "gait trot"),
        ({"role": "sampling"}, 1, {"ring"}, None),
    ],
)
def test_a_new_key_is_one_line(run, declared, tables, names, word):
    made = run(declared)
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
