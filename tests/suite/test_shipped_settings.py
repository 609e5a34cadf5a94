"""Extreme numbers and wrong types in shipped suites are refused in one line, or the case can be built."""

import itertools
import random
import tomllib
from pathlib import Path

import pytest

import hpcdl
from hpcdl import registry, suite
from hpcdl.cases.keys.key import keys
from hpcdl.cases.keys.suite_tables import module_of
from hpcdl.optim.parts.schedules import SCHEDULES
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal

from .conftest import text_of

SUITES = sorted((Path(hpcdl.__file__).parent.parent / "suites").glob("*.toml"))

EXTREMES = [
    *(float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e-320, 5e-324, 0.0, -0.0, -1.5, 1e18),
    *(-1, 0, 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 10**23, 10**400),
    *("", "\0", "é", "ring:", True, [[]], [-1], [float("nan")], [2**63 - 1], {}, {"name": ""}),
]

TRIED = 10
"""Mutations of each table, by a seed of the table; about two thousand exist."""

SMALL = 1_000_000
"""Largest model, in parameters, whose session is built."""


def tables():
    """Return, by suite, one table of each combination of keys in all suites, each key with its first value."""
    found, seen = {}, set()
    for path in SUITES:
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            first = {key: value[0] if isinstance(value, list) else value for key, value in table.items()}
            if first.get("dataset") == "fashion_mnist" or "fashion_mnist" in str(first.get("dataset")):
                first["dataset"] = "digits"
            shape = (first["kind"], *(str(first.get(key)) for key in ("training", "network", "schedule")), *first)
            if shape not in seen:
                found.setdefault(path.stem, []).append(first)
                seen.add(shape)
    return found


def settings_within(key, value):
    """Return the names of all settings of the table ``value`` of ``key``."""
    if key == "straggler":
        return ("rank", "factor", "probability", "seconds")
    if key == "failure":
        return ("rank", "step")
    if key == "shares":
        return ("weights",)
    if key == "mesh":
        return ("data", "model", "split", "linear", "exchange")
    if key == "schedule":
        names = itertools.chain(*(function.__kwdefaults__ or () for function in SCHEDULES.values()))
        return (*names, "warmup", "warmup_steps", "warmup_from", "base_batch")
    folder = {"optimizer": "optim", "dataset": "datasets", "model": "models", "backend": "backends"}.get(key, key)
    return tuple(registry.settings_of(registry.find(folder, value["name"])))


USUAL = {
    "aggregation": {"name": "ring"},
    "backend": {"name": "numpy"},
    "compression": {"name": "none"},
    "dataset": {"name": "digits"},
    "optimizer": {"name": "sgd"},
    "schedule": {"name": "constant"},
    "training": {"name": "synchronous"},
    "straggler": {"rank": 1, "factor": 2.0},
    "failure": {"rank": 1, "step": 1},
    "shares": {"weights": [2, 1]},
    "mesh": {"model": 2},
}
"""Table that receives a setting if the suite has none."""


def held(table, key):
    value = table.get(key, USUAL.get(key))
    return {"name": value} if isinstance(value, str) else value


def mutations(table):
    """Return (key, setting or None) for each possible entry of the table."""
    every = keys(module_of(table["kind"]).SPEC)
    within = [
        (key, one) for key in (*USUAL, "model") if key in every for one in settings_within(key, held(table, key))
    ]
    return [*((key, None) for key in every), *within]


PARTNERS = {"batch_per_rank": "global_batch", "epochs": "steps"}
PARTNERS |= {other: key for key, other in PARTNERS.items()}


def changed(table, key, setting, value):
    if setting is None:
        return {**{name: one for name, one in table.items() if name != PARTNERS.get(key)}, key: value}
    return {**table, key: {**held(table, key), setting: value}}


def build(case):
    """Build everything of a case before its first message."""
    case.fields()
    case.module.program(case.spec, Journal(Recorder(), lambda: None))
    if case.kind == "train" and case.spec.data.name == "digits":
        replica = case.spec.replica(case.spec.kernels)
        case.spec.session(Journal(Recorder(), lambda: None), replica).inputs.close()


def tried(name, table):
    """Return mutations (table, key, setting or None, value) of a table."""
    every = list(itertools.product(mutations(table), EXTREMES))
    chosen = random.Random(f"{name} {sorted(table)}").sample(every, min(TRIED, len(every)))
    return [(table, *place, value) for place, value in chosen]


@pytest.mark.parametrize(("name", "suites_tables"), tables().items(), ids=tables())
def test_an_extreme_setting_is_refused_in_one_line_or_can_be_built(name, suites_tables):
    for table, key, setting, value in itertools.chain(*(tried(name, one) for one in suites_tables)):
        text = text_of(changed(table, key, setting, value))
        try:
            cases = suite.parse(text, "s.toml").cases
        except suite.UsageError as error:
            message = str(error)
            assert message.startswith("s.toml: "), (key, setting, value)
            assert "\n" not in message, (key, setting, value)
            assert len(message) < 500, (key, setting, value)
            assert any(word in message for word in (key, str(setting), *table)), (key, setting, value, message)
            continue
        for case in cases:
            build(case)
            assert all(
                field is None or isinstance(field, (str, bool)) or abs(field) < 2**63
                for field in case.fields().values()
            ), (key, setting, value)
