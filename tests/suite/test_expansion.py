"""Expansion of a suite: its cases, their order, names and digests."""

import itertools

import pytest

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.key import keys
from hpcdl.cases.keys.suite_tables import module_of

from .conftest import CASES, text_of

ONE_LAYER = """
from hpcdl.nn.layers import Flatten
from hpcdl.nn.layers import Linear

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
    values = [(str(case.spec.aggregation), case.ranks, case.spec.message_bytes) for case in cases]
    assert values == list(itertools.product(["tree", "ring"], [4, 2], [8, 4]))


def test_lists_of_settings_in_tables_expand_too(parsed):
    """A setting that takes a list keeps it."""
    cases = parsed(
        ranks=4,
        global_batch=64,
        training=["synchronous", {"name": "softsync", "servers": [1, 4], "collect": [1, "all"]}],
        straggler={"rank": "all", "probability": [0.25, 0.5], "seconds": 0.5},
        shares={"weights": [1, 1, 1, 1]},
    )
    pairs = [(str(case.spec.training), case.spec.straggler.probability) for case in cases]
    servers = [f"softsync(servers={servers},collect={collect})" for servers in (1, 4) for collect in (1, "all")]
    assert pairs == list(itertools.product(["synchronous", *servers], [0.25, 0.5]))


def test_none_in_a_list_is_a_case_without_the_key(parsed):
    tree = {"name": "fat_tree", "hosts": [2, 2]}
    cases = parsed("collective", ranks=4, network="ethernet-1g", topology=["none", tree])
    assert [case.spec.topology is None for case in cases] == [True, False]


def test_names_describe_the_case(parsed):
    (train,) = parsed(aggregation={"name": "tree", "arity": 3})
    (collective,) = parsed("collective")
    (pairwise,) = parsed("pairwise")
    assert train.name == "train-lenet5-digits-synchronous-tree(arity=3)-p2-b64-3st"
    assert collective.name == "collective-allreduce-ring-p2-64B"
    assert pairwise.name == "pairwise-exchange-fabric-64B"


MEASURED = {"repetitions": 7, "warmup": 7, "threads": 2, "trace": "events"}
ANOTHER = {
    "train": {
        "model": "my_models:one_layer",
        "dataset": {"name": "synthetic", "shape": [8, 8, 1]},
        "dtype": "float64",
        "training": {"name": "synchronous", "bucket_bytes": 4096},
        "aggregation": {"name": "tree", "arity": 3},
        "compression": {"name": "fp16", "error_feedback": True},
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "schedule": "polynomial",
        "learning_rate": 0.2,
        "ranks": 4,
        "global_batch": 32,
        "batch_per_rank": 32,
        "shares": {"weights": [3, 1]},
        "mesh": {"model": 2},
        "epochs": 2,
        "steps": 4,
        "target_accuracy": 0.5,
        "evaluate_every": 2,
        "sharpness": 8,
        "seed": 2,
        "prefetch": 0,
        "partition": "replicas",
        "threads": 2,
        "trace": "steps",
        "straggler": {"rank": 1, "factor": 2},
        "quantization": {"weights": 8, "activations": 4},
        "validation": 0.1,
        "pruning": {"sparsity": 0.5},
        **dict.fromkeys(("backend", "stop_at_target", "failure", "tune")),
        **dict.fromkeys(("network", "ranks_per_host", "topology", "device", "flops", "times", "jitter")),
    },
    "collective": {
        "collective": "allgather",
        "straggler": {"rank": 1, "seconds": 0.1},
        "aggregation": "tree",
        "ranks": 4,
        "message_bytes": "lenet5",
        "dtype": "float64",
        "backend": "numba",
        "start": "window",
        "placement": "out_of_place",
        "network": "gemini",
        "ranks_per_host": 2,
        **dict.fromkeys(("counts", "topology")),
        **MEASURED,
    },
    "node": {"work": "triad", "pattern": "together", "ranks": 3, "backend": "numba", "confirm": 2, **MEASURED},
    "pairwise": {
        "exchange": "raw",
        "message_bytes": 8,
        "pattern": "all_pairs",
        "matchings": 3,
        "window": 8,
        **dict.fromkeys(("ranks", "confirm")),
        **MEASURED,
    },
    "replay": {
        "model": "cifar_quick",
        "dataset": "digits",
        "training": "layerwise",
        "aggregation": "tree",
        "compression": "fp16",
        "ranks": 4,
        "batch_per_rank": 16,
        "steps": 7,
        "warmup": 3,
        "device": "k20",
        "flops": 2e9,
        "time_scale": 2,
        "straggler": {"rank": 1, "seconds": 0.1},
        "jitter": 0.1,
        "network": "gemini",
        "threads": 2,
        "trace": "steps",
        **dict.fromkeys(("global_batch", "mesh", "times", "ranks_per_host", "topology")),
    },
}
"""Another valid value of each key; None if there is no other, or only with other keys."""

SIMULATED = {
    "train": {"flops": 1e9},
    "replay": {},
    "collective": dict.fromkeys(("straggler", "backend", "start", "placement", "threads")),
}
"""Keys of a simulated case of a kind; None: those that only a measured one may have."""
OF_SIMULATIONS = {"network": "gemini", "ranks_per_host": 2, "jitter": 0.2, "device": "k20", "flops": 3e9}
CHANGES = [(CASES[kind], key, value) for kind, values in ANOTHER.items() for key, value in values.items()] + [
    ({**CASES[kind], "network": "ethernet-1g", **further}, key, further.get(key, value) and value)
    for kind, further in SIMULATED.items()
    for key, value in {**ANOTHER[kind], **OF_SIMULATIONS}.items()
    if key in ANOTHER[kind]
]
PARTNER = {"batch_per_rank": "global_batch", "epochs": "steps", "device": "flops"}


def test_every_key_has_another_value():
    for kind in list(ANOTHER):
        assert ANOTHER[kind].keys() == keys(module_of(kind).SPEC).keys()


def test_the_digest_depends_on_values_and_not_on_notation(written):
    def digests(text):
        return [case.digest for case in suite.parse(text, "s.toml").cases]

    table = CASES["train"]
    (one,) = digests(text_of(table))
    assert len(one) == 12  # 48 bits: of a thousand cases two are equal once in 500 million suites
    assert digests(text_of(dict(reversed(table.items())))) == [one]
    written_out = {**table, "seed": 1, "threads": 1, "dtype": "float32", "optimizer": {"name": "sgd"}}
    assert digests(text_of(written_out)) == [one]
    assert digests(text_of(table).replace('name = "s"', 'name = "t"')) == [one]
    assert digests(f"# a remark\n{text_of(table)}\n") == [one]
    assert one in digests(text_of({**table, "ranks": [1, 2, 4], "seed": [3, 1]}))


def test_cases_that_differ_in_one_setting_have_different_names_digests_and_records():
    """Otherwise a report could not distinguish two cases after they ran."""
    for keys_of_case, key, value in CHANGES:
        if value is None:
            continue
        table = {name: setting for name, setting in keys_of_case.items() if setting is not None}
        other = {name: setting for name, setting in table.items() if name != PARTNER.get(key)}
        cases = suite.parse(text_of(table, {**other, key: value}), "s.toml").cases
        assert len(set(names(cases))) == 2
        assert cases[0].digest != cases[1].digest
        known = [Record.of(case.fields()) for case in cases]
        assert len({(one.configuration(), one.ranks, one.seed) for one in known}) == 2


def test_the_only_varying_values_are_in_the_name(parsed):
    found = names(parsed(learning_rate=[0.1, 0.2], seed=[1, 2]))
    ends = [f"-learning_rate={rate}-seed={seed}" for rate in (0.1, 0.2) for seed in (1, 2)]
    assert [name.rpartition("-p2-b64-3st")[2] for name in found] == ends


def test_seeds_of_a_case_are_one_configuration(parsed):
    """The report pools them, so that only the field ``seed`` may differ."""
    fields = [case.fields() for case in parsed(seed=[1, 2])]
    differing = {key for key in fields[0] if fields[0][key] != fields[1][key]}
    assert differing == {"case", "digest", "seed", "settings"}
    first, second = map(Record.of, fields)
    assert first.configuration() == second.configuration()


def test_overrides_accept_values_tables_and_lists(parsed):
    (case,) = parsed(overrides=["case.steps=5", "case.optimizer=adam", 'case.training={name="synchronous"}'])
    assert (case.spec.steps, case.spec.optimizer.written) == (5, "adam")
    assert [case.ranks for case in parsed(overrides=["case.ranks=[1, 2, 4]"])] == [1, 2, 4]
    assert parsed(overrides=["suite.name=other"])[0].suite == "other"


def test_an_override_changes_a_key_of_a_table(parsed):
    optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}
    (case,) = parsed(optimizer=optimizer, overrides=["case.optimizer.momentum=0.8"])
    assert case.spec.optimizer.written == {**optimizer, "momentum": 0.8}
    (case,) = parsed(overrides=["case.optimizer.momentum=0.8"])
    assert case.spec.optimizer.written == {"name": "sgd", "momentum": 0.8}
    trees = ["tree", {"name": "tree", "arity": 3}]
    cases = parsed(aggregation=trees, overrides=["case.training.bucket_bytes=4096"])
    assert [case.spec.training.settings["bucket_bytes"] for case in cases] == [4096, 4096]


def test_an_override_replaces_keys_that_exclude_it(parsed):
    for changed, override, gone in [
        ({"epochs": 2, "steps": None}, "case.steps=5", "epochs"),
        ({}, "case.epochs=2", "steps"),
        ({}, "case.batch_per_rank=8", "global_batch"),
        ({"batch_per_rank": 8, "global_batch": None}, "case.global_batch=8", "batch_per_rank"),
    ]:
        (case,) = parsed(overrides=[override], **changed)
        key, _, value = override.removeprefix("case.").partition("=")
        assert (getattr(case.spec, key), getattr(case.spec, gone)) == (int(value), None)


def test_an_override_skips_cases_without_the_key():
    text = text_of(CASES["train"], CASES["collective"])
    train, collective = suite.parse(text, "s.toml", ["case.repetitions=7", "case.steps=9"]).cases
    assert train.spec.steps == 9
    assert collective.spec.repetitions == 7


def test_cases_are_selected_by_pattern_or_by_name(written):
    dataset = {"name": "synthetic", "shape": [8, 8, 1]}
    text = written(dataset=dataset, aggregation=["ring", "tree"], ranks=[1, 2])
    whole = suite.parse(text, "s.toml")

    def matching(*globs):
        found = suite.parse(text, "s.toml", globs=globs)
        assert [case for case in whole.cases if case not in found.cases] == [*found.others]
        return found.cases

    assert matching("*ring*") == whole.cases[::2]
    assert matching("*-p2-*") == whole.cases[2:]
    assert matching("*-p2-*", "*ring*") == (whole.cases[0], *whole.cases[2:])
    for case in whole.cases:
        assert matching(case.name) == (case,)
    for glob in ("*RING*", ""):
        with pytest.raises(suite.UsageError, match="matches none of the cases, such as 'train-lenet5-"):
            matching("*ring*", glob)


def test_further_values_need_full_or_a_pattern(written):
    text = written(aggregation=["ring", "tree"], seed=[1], full={"seed": [2, 3], "aggregation": "chain"})

    def chosen(*globs, overrides=(), full=False):
        cases = suite.parse(text, "s.toml", overrides, globs, full=full).cases
        return [(case.spec.aggregation.name, case.spec.seed) for case in cases]

    assert chosen() == [("ring", 1), ("tree", 1)]
    assert chosen(full=True) == [(scheme, seed) for scheme in ("ring", "tree", "chain") for seed in (1, 2, 3)]
    assert chosen("*seed=3*") == [("ring", 3), ("tree", 3), ("chain", 3)]
    assert chosen(overrides=["case.seed=7"], full=True) == [("ring", 7), ("tree", 7), ("chain", 7)]
    assert suite.parse(text, "s.toml").only_full == 7
    batches = written(batch_per_rank=[4], full={"batch_per_rank": [8]})
    (one,) = suite.parse(batches, "s.toml", ["case.global_batch=16"], full=True).cases
    assert one.spec.global_batch == 16
    assert suite.parse(text, "s.toml", full=True).only_full == 0
    with pytest.raises(suite.UsageError, match="all cases have full = true; run them with --full"):
        suite.parse(written(full=True), "s.toml")


def test_every_kind_accepts_a_time_limit_that_does_not_change_its_digest(parsed):
    for kind in list(ANOTHER):
        (case,), (limited,) = parsed(kind), parsed(kind, timeout_seconds=90)
        assert (case.timeout_seconds, limited.timeout_seconds) == (None, 90)
        assert limited.digest == case.digest
        assert limited.spec == case.spec
