"""Specs: what a suite writes becomes objects once, records have it as JSON, and a key declares its role in one line."""

import csv
import json
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.conftest import CASES, text_of

import hpcdl
from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.cases import train
from hpcdl.cases.keys import suite_tables
from hpcdl.cases.keys.key import Choice, given, key, keys, restored
from hpcdl.cases.keys.suite_tables import kinds, module_of
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings

SUITES = sorted((Path(hpcdl.__file__).parent.parent / "suites").glob("*.toml"))
LEAST = {**CASES["train"], "dataset": {"name": "synthetic", "shape": [8, 8, 1]}}
del LEAST["kind"]
WHOLE = {
    **LEAST,
    "training": {"name": "asynchronous", "servers": 1},
    "straggler": {"rank": 1, "factor": 3},
    "failure": {"rank": 1, "step": 2},
    "shares": {"weights": [3, 1]},
    "quantization": {"weights": 8, "activations": 4},
    "pruning": {"sparsity": 0.5},
}


def test_fields_of_a_spec_are_frozen_keys():
    for kind in kinds():
        spec = module_of(kind).SPEC
        assert all("key" in one.metadata for one in keys(spec).values())
        values = {name: 1 for name, one in keys(spec).items() if one.default is not Choice}
        with pytest.raises(FrozenInstanceError):
            spec(**values).ranks = 3


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_settings_of_a_record_make_the_spec_again(path, monkeypatch):
    # no check: datasets may be absent
    unchecked = lambda case: SimpleNamespace(identity=module_of(case.kind).identity, CHECKS=())
    monkeypatch.setattr(suite.Case, "module", property(unchecked))
    for case in suite.load(path, full=True).cases:
        text = json.dumps(given(case.spec))
        assert restored(type(case.spec), json.loads(text)) == case.spec


def test_the_record_has_what_differs_from_the_defaults_as_the_suite_writes_it():
    spec = restored(TrainSpec, WHOLE)
    assert given(spec) == WHOLE
    assert restored(TrainSpec, {**LEAST, "seed": 1, "aggregation": {"name": "ring"}}) == restored(TrainSpec, LEAST)


def test_what_a_case_names_is_made_once():
    spec = restored(TrainSpec, LEAST)
    assert spec.data is spec.data
    assert spec.layers is spec.layers
    assert spec.data is restored(TrainSpec, {**LEAST, "ranks": 4}).data
    assert (spec.images_per_step, spec.planned_steps, spec.workers) == (64, 3, range(2))


def test_reading_a_record_imports_nothing_that_it_names():
    spec = restored(TrainSpec, {**LEAST, "training": "no_such_module:own"})
    assert spec.training.name == "no_such_module:own"
    with pytest.raises(ValueError, match="which only a suite or an option may name"):
        spec.training.bind()


SUITE = text_of({**CASES["train"], "ranks": [1, 2], "global_batch": 16, "steps": 12, "gait": ["walk", "trot"]})


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
