"""Any value of any key gives a case that can be recorded, or is refused in one line."""

import random

import pytest

from hpcdl import suite
from hpcdl.cases.spec.keys import keys
from hpcdl.cases.spec.suite_tables import module_of

from .conftest import CASES, Verbatim

VALUES = [
    *(True, False, 0, -1, 1, 2, 10**30, -(10**30), 0.0, -0.5, 1.5, 1e308, float("nan"), float("inf")),
    *("", "a", "ring", "sgd", ":", "a:", ":b", "os:path", "os:getcwd", "json:dumps", "..", "a\nb", "é", "x" * 300),
    *([], [[]], [1], [True], ["ring"], [[1, 2]], [{}], [[[1]]], {}, {"a": {"b": 1}}),
    *(
        {"name": 1},
        {"name": ""},
        {"name": ["ring"]},
        {"name": "ring", "x": 1},
        {"name": "json:dumps", "indent": 2},
    ),
    *(Verbatim("2020-01-01"), Verbatim("07:32:00"), {"name": "tree", "arity": Verbatim("2020-01-01")}),
    *({"name": "tree", "arity": value} for value in (-1, True, 2.5, "a", [2], {}, float("nan"))),
    *({"name": "sgd", "momentum": value} for value in (float("nan"), -1, "a", [0.9], {}, True)),
    *(
        {"name": "synthetic", "shape": value}
        for value in ([], [[1]], [0, 0, 0], [28, 28, 1.5], ["a", "b", "c"], 3)
    ),
    *({"name": "synthetic", "shape": [28, 28, value]} for value in ([1], {"a": 1}, True, -1)),
    *({"name": "synthetic", "classes": value} for value in (0, 10**12, "a")),
    *({"name": "synthetic", "noise": value} for value in (-1, float("nan"), "a")),
    *({"name": "mnist", "path": value} for value in ("/dev/null", "a\x00b", 3)),
    *({"name": "hdf5", "path": value} for value in ("", "/dev/null", "/tmp", "a\x00b", "x" * 5000, 3)),
    *({"name": "cifar10", "path": "/dev/null", "crop_padding": value} for value in (-1, 2.5, True)),
    *({"name": "step", "at": value} for value in (0.5, ["a"], [2.0], [], [[0.5]])),
    *({"name": "constant", setting: "a"} for setting in ("warmup", "base_batch", "global_batch", "after", "")),
    *({"name": "synchronous", "bucket_bytes": value} for value in ("a", 1.5, [1], True)),
]


@pytest.mark.parametrize("kind", list(CASES))
def test_any_value_for_any_key(written, kind):
    tried = [*keys(module_of(kind).SPEC), "kind", "bogus"]
    made = 0
    for key in tried:
        for value in VALUES:
            partner = {"batch_per_rank": "global_batch", "epochs": "steps"}.get(key)
            text = written(kind, **{key: value}, **({partner: None} if partner else {}))
            try:
                cases = suite.parse(text, "s.toml").cases
            except suite.UsageError as error:
                message = str(error)
                assert message.startswith("s.toml: ")
                assert "\n" not in message
            else:
                made += len(cases)
                assert all(
                    field is None or isinstance(field, (str, int, float, bool))
                    for case in cases
                    for field in case.fields().values()
                )
    assert made >= len(tried)


def test_any_damage_to_a_file(written):
    """Bytes are deleted, doubled or exchanged; the file is still a suite, or is refused in one line."""
    chance = random.Random(1)
    whole = written("collective", network="gemini", aggregation=["ring", {"name": "tree", "arity": 3}])
    refusals = set()
    for _ in range(1000):
        letters = list(whole)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(letters))
            letters[place] = chance.choice(["", letters[place] * 2, *'[]{}"=#.,\n1-\0'])
        try:
            suite.parse("".join(letters), "s.toml")
        except suite.UsageError as error:
            refusals.add(str(error))
    assert len(refusals) > 50
    assert not any("\n" in refusal for refusal in refusals)
