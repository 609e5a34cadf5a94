"""What a suite file means: which cases, in which order, under which names, and what makes one another case."""

import itertools

import pytest

from hpcdl import suite

from .conftest import CASES, text_of

ONE_LAYER = """
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear

def one_layer(shape, classes):
    return [Flatten("flatten"), Linear("only", classes)]
"""


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_models.py").write_text(ONE_LAYER)


def names(cases):
    return [case.name for case in cases]


def test_lists_expand_to_their_product_in_the_order_of_the_file(parsed):
    cases = parsed("collective", aggregation=["tree", "ring"], ranks=[4, 2], message_bytes=[8, 4])
    values = [(case.settings["aggregation"]["name"], case.ranks, case.settings["message_bytes"]) for case in cases]
    assert values == list(itertools.product(["tree", "ring"], [4, 2], [8, 4]))


def test_keys_left_out_have_the_defaults_of_the_contract(parsed):
    (case,) = parsed()
    expected = {"dtype": "float32", "compression": "none", "seed": 1, "threads": 1}
    assert expected.items() <= case.settings.items()
    assert case.settings["backend"] == {"name": "numpy"}
    assert case.settings["training"] == {"name": "synchronous"}


def test_a_name_and_a_table_of_only_a_name_are_the_same_case(parsed):
    assert parsed(aggregation="ring") == parsed(aggregation={"name": "ring"})


def test_names_say_what_a_case_is(parsed):
    (train,) = parsed(aggregation={"name": "tree", "arity": 3})
    (collective,) = parsed("collective")
    (pairwise,) = parsed("pairwise")
    assert train.name == "train-lenet5-digits-synchronous-tree(arity=3)-p2-b64-3st"
    assert collective.name == "collective-allreduce-ring-p2-64B"
    assert pairwise.name == "pairwise-exchange-fabric-64B"


ANOTHER = {
    "train": {
        "model": "my_models:one_layer",
        "dataset": {"name": "synthetic", "shape": [8, 8, 1]},
        "backend": None,
        "dtype": "float64",
        "training": {"name": "synchronous", "bucket_bytes": 4},
        "aggregation": {"name": "tree", "arity": 3},
        "compression": None,
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "schedule": "polynomial",
        "learning_rate": 0.2,
        "ranks": 4,
        "global_batch": 32,
        "batch_per_rank": 32,
        "shares": {"weights": [3, 1]},
        "epochs": 2,
        "steps": 4,
        "target_accuracy": 0.5,
        "stop_at_target": None,
        "evaluate_every": 2,
        "seed": 2,
        "prefetch": 0,
        "threads": 2,
        "trace": "steps",
        "straggler": {"rank": 1, "factor": 2},
        "failure": None,
        "network": None,
        "ranks_per_host": None,
        "device": None,
        "flops": None,
        "times": None,
        "jitter": None,
    },
    "collective": {
        "collective": "allgather",
        "aggregation": "tree",
        "ranks": 4,
        "message_bytes": "lenet5",
        "dtype": "float64",
        "backend": "numba",
        "repetitions": 7,
        "warmup": 7,
        "start": "window",
        "placement": "out_of_place",
        "network": "gemini",
        "ranks_per_host": 2,
        "threads": 2,
        "trace": "events",
    },
    "pairwise": {
        "exchange": "raw",
        "message_bytes": 8,
        "pattern": "all_pairs",
        "ranks": None,
        "repetitions": 7,
        "warmup": 7,
        "threads": 2,
        "trace": "events",
    },
    "replay": {
        "model": "cifar_quick",
        "dataset": "digits",
        "training": "layerwise",
        "aggregation": "tree",
        "ranks": 4,
        "batch_per_rank": 16,
        "steps": 7,
        "warmup": 3,
        "device": "k20",
        "flops": 2e9,
        "times": None,
        "time_scale": 2,
        "scale_to_batch": None,
        "threads": 2,
        "trace": "steps",
    },
}
"""Another valid value for every key; None where there is only one, or none without other keys."""

CHANGES = [
    (kind, key, value) for kind, keys in ANOTHER.items() for key, value in keys.items() if value is not None
]
PARTNER = {"batch_per_rank": "global_batch", "epochs": "steps", "device": "flops"}


@pytest.mark.parametrize("kind", list(ANOTHER))
def test_every_key_is_tried(kind):
    assert ANOTHER[kind].keys() == suite.kind_of(kind).KEYS.keys()


@pytest.mark.parametrize(("kind", "key", "value"), CHANGES)
def test_every_setting_changes_the_digest(parsed, kind, key, value):
    changed = parsed(kind, **{key: value}, **({PARTNER[key]: None} if key in PARTNER else {}))
    assert changed[0].digest != parsed(kind)[0].digest


def test_the_digest_is_of_what_runs_and_not_of_how_it_is_written(written):
    def digests(text):
        return [case.digest for case in suite.parse(text, "s.toml").cases]

    table = CASES["train"]
    (one,) = digests(text_of(table))
    assert digests(text_of(dict(reversed(table.items())))) == [one]
    assert digests(text_of({**table, "seed": 1, "dtype": "float32", "optimizer": {"name": "sgd"}})) == [one]
    assert digests(text_of(table).replace('name = "s"', 'name = "t"')) == [one]
    assert digests(f"# a remark\n{text_of(table)}\n") == [one]
    assert one in digests(text_of({**table, "ranks": [1, 2, 4], "seed": [3, 1]}))


@pytest.mark.parametrize(("kind", "key", "value"), CHANGES)
def test_cases_that_differ_in_one_setting_have_names_and_records_of_their_own(kind, key, value):
    """Nothing may make two cases that a report cannot tell apart: it would find out after they have run."""
    from hpcdl.analysis.fields import configuration

    other = {name: setting for name, setting in CASES[kind].items() if name != PARTNER.get(key)}
    cases = suite.parse(text_of(CASES[kind], {**other, key: value}), "s.toml").cases
    assert len(set(names(cases))) == 2
    known = [case.fields() for case in cases]
    assert len({(configuration(one), one["ranks"], one["seed"]) for one in known}) == 2


def test_a_pair_is_told_from_two_halves_of_one_rank_each():
    from hpcdl.analysis.fields import configuration

    cases = suite.parse(
        text_of({**CASES["pairwise"], "pattern": ["pair", "bisection", "all_pairs"]}), "s.toml"
    ).cases
    assert len({configuration(case.fields()) for case in cases}) == 3


def test_values_that_vary_alone_are_in_the_name(parsed):
    assert [
        name.rpartition("-p2-b64-3st")[2] for name in names(parsed(learning_rate=[0.1, 0.2], seed=[1, 2]))
    ] == [
        "-learning_rate=0.1-seed=1",
        "-learning_rate=0.1-seed=2",
        "-learning_rate=0.2-seed=1",
        "-learning_rate=0.2-seed=2",
    ]


def test_seeds_of_a_case_are_one_configuration(parsed):
    """Their medians are taken together, so nothing but the field ``seed`` may tell them apart."""
    first, second = (case.fields() for case in parsed(seed=[1, 2]))
    differing = {key for key in first if first[key] != second[key]}
    assert differing == {"case", "digest", "seed"}


def test_overrides_hold_values_tables_and_lists(parsed):
    (case,) = parsed(overrides=["case.steps=5", "case.optimizer=adam", 'case.training={name="synchronous"}'])
    assert (case.settings["steps"], case.settings["optimizer"]) == (5, {"name": "adam"})
    assert [case.ranks for case in parsed(overrides=["case.ranks=[1, 2, 4]"])] == [1, 2, 4]
    assert parsed(overrides=["suite.name=other"])[0].suite == "other"


def test_an_override_reaches_into_tables(parsed):
    optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}
    (case,) = parsed(optimizer=optimizer, overrides=["case.optimizer.momentum=0.8"])
    assert case.settings["optimizer"] == {**optimizer, "momentum": 0.8}
    (case,) = parsed(overrides=["case.optimizer.momentum=0.8"])
    assert case.settings["optimizer"] == {"name": "sgd", "momentum": 0.8}
    cases = parsed(aggregation=["tree", {"name": "tree", "arity": 3}], overrides=["case.training.bucket_bytes=4"])
    assert [case.settings["training"]["bucket_bytes"] for case in cases] == [4, 4]


def test_an_override_reaches_into_each_of_a_list(parsed):
    optimizers = ["sgd", {"name": "nesterov", "momentum": 0.5}]
    cases = parsed(optimizer=optimizers, overrides=["case.optimizer.momentum=0.8"])
    assert [case.settings["optimizer"] for case in cases] == [
        {"name": "sgd", "momentum": 0.8},
        {"name": "nesterov", "momentum": 0.8},
    ]


@pytest.mark.parametrize(
    ("changed", "override", "gone"),
    [
        ({"epochs": 2, "steps": None}, "case.steps=5", "epochs"),
        ({}, "case.epochs=2", "steps"),
        ({}, "case.batch_per_rank=8", "global_batch"),
        ({"batch_per_rank": 8, "global_batch": None}, "case.global_batch=8", "batch_per_rank"),
    ],
)
def test_an_override_replaces_what_excludes_it(parsed, changed, override, gone):
    (case,) = parsed(overrides=[override], **changed)
    key, _, value = override.removeprefix("case.").partition("=")
    assert (case.settings[key], case.settings[gone]) == (int(value), None)


def test_an_override_passes_over_cases_without_the_key():
    text = text_of(CASES["train"], CASES["collective"])
    train, collective = suite.parse(text, "s.toml", ["case.repetitions=7", "case.steps=9"]).cases
    assert train.settings["steps"] == 9
    assert collective.settings["repetitions"] == 7


def test_cases_are_chosen_by_pattern_or_by_their_whole_name(written):
    dataset = {"name": "synthetic", "shape": [8, 8, 1]}
    whole = suite.parse(written(dataset=dataset, aggregation=["ring", "tree"], ranks=[1, 2]), "s.toml")
    assert whole.matching("*ring*").cases == whole.cases[::2]
    assert whole.matching("*-p2-*").cases == whole.cases[2:]
    for case in whole.cases:
        assert whole.matching(case.name).cases == (case,)
    with pytest.raises(suite.UsageError, match="matches none of the cases, such as 'train-lenet5-"):
        whole.matching("*RING*")


def test_a_simulation_needs_one_process(parsed):
    (real,) = parsed("collective", ranks=64)
    (simulated,) = parsed("collective", ranks=64, network="gemini")
    assert (real.processes, real.ranks) == (64, 64)
    assert (simulated.processes, simulated.ranks) == (1, 64)
