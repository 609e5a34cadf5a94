"""Specs: what a suite writes becomes objects once, and records have it as JSON."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import hpcdl
from hpcdl import suite
from hpcdl.cases.keys.key import Choice, given, keys, restored
from hpcdl.cases.keys.suite_tables import kinds, module_of
from hpcdl.cases.keys.train_spec import TrainSpec

SUITES = sorted((Path(hpcdl.__file__).parent.parent / "suites").glob("*.toml"))
LEAST = {
    "model": "lenet5",
    "dataset": {"name": "synthetic", "shape": [8, 8, 1]},
    "learning_rate": 0.1,
    "ranks": 2,
    "global_batch": 64,
    "steps": 3,
}
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
    monkeypatch.setattr(suite.Case, "module", property(lambda case: Unchecked(module_of(case.kind))))
    for case in suite.load(path, full=True).cases:
        text = json.dumps(given(case.spec))
        assert restored(type(case.spec), json.loads(text)) == case.spec


class Unchecked:
    """A kind whose cases are all fine: datasets need not be there."""

    def __init__(self, module):
        self.identity = module.identity
        self.CHECKS = ()


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
