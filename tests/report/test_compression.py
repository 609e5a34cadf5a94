"""Section Compression: the verdict, the rival of each row, and the break-even bandwidth."""

import math

import pytest

from hpcdl.analysis.run.record import Record
from hpcdl.report.run.findings import findings
from hpcdl.report.run.grouping import Row, Scale
from hpcdl.report.sections import compression


def row(name, *steps, **fields):
    """Return a method with a time of a step for each seed."""
    times = [{"step_seconds": step} for step in steps] or [{}] * 3
    records = [Record(ranks=4, seed=seed, **fields, **time) for seed, time in enumerate(times)]
    return Row(name, Scale(records))


class Found:
    """Findings with one problem."""

    def __init__(self, answered_by=()):
        self.problems, self.answered_by = ([],), answered_by

    def once(self, make):
        return make(self)


DENSE = row("dense", 0.1, 0.101, 0.1, bytes_sent_per_rank=1e6, final_accuracy=0.9)
SPARSE = row("sparse", bytes_sent_per_rank=1e4, encode_seconds=0.006, decode_seconds=0.003, compression="top_k")


def test_below_the_break_even_bandwidth_the_saved_bytes_take_longer_than_the_added_work():
    levels = {(1e6, 0.01): 1e8, (1e6, 0): math.inf, (0, 0.01): 0, (-1, 0): 0, (0, -1): math.inf}
    assert [compression.bandwidth(*saved_and_added) for saved_and_added in levels] == [*levels.values()]
    assert compression.Pair(**vars(SPARSE), dense=DENSE).break_even == "110 MB/s"


@pytest.mark.parametrize(
    ("step", "fields", "says"),
    [
        (0.099, {}, "No compressor saves time: the fastest, {}, is 1.0 times as fast as without compression (4"),
        (0.04, {}, "Top-k over a ring is 2.5 times as fast as without compression (4 ranks)."),
        ((0.04, 0.09, 0.02), {}, "Not decided whether compression helps (the difference may be chance): {} is 2"),
        (
            0.2,
            {"disturbed": "load"},
            "Not decided whether compression helps (all cases were disturbed): {} is 0.5",
        ),
        (0.04, {"final_accuracy": 0.896}, "compression and changes the accuracy by -0.4 percentage p"),
        (0.01, {"final_accuracy": 0.572}, "Every compressor that saves time loses accuracy; the fastest, {}, is"),
    ],
)
def test_the_answer_says_whether_compression_saves_time(monkeypatch, step, fields, says):
    steps = step if isinstance(step, tuple) else (step, step, 1.001 * step)
    fast = row("", *steps, compression="top_k", aggregation="ring", training="synchronous", **fields)
    monkeypatch.setattr(compression, "rows", lambda _: [DENSE, fast])
    headline = compression.cost_answer(Found()).headline
    assert says.format("top-k over a ring") in headline


def test_a_compressor_is_compared_with_the_dense_step_of_its_optimizer(monkeypatch):
    """The fastest dense step is that of another optimizer: the quotient would be the optimizer's, too."""
    methods = [row("", optimizer=name, step_seconds=step) for name, step in (("adam", 0.02), ("sgd", 0.05))]
    packed = [row("", optimizer=name, compression="fp16", step_seconds=0.04) for name in ("sgd", "lars")]
    monkeypatch.setattr(compression, "rows", lambda _: [*methods, *packed])
    found = Found()
    assert [pair.gain for pair in compression.compared(found, *found.problems)] == [1.25, None]


def test_a_break_even_is_the_fastest_network_on_which_a_step_is_faster(hand):
    for network, dense, packed in (("ethernet-10g", 20, 25), ("ethernet-1g", 80, 40)):
        for compression_, ms in (("none", dense), ("fp16", packed), ("bf16", 2 * dense), ("qsgd", dense / 2)):
            given = {"network": network, "settings": {"network": network}}
            hand.train([[ms] * 30] * 2, compression=compression_, kind="replay", **given)
    assert compression.break_even_answer(findings([hand.read()])[0]).headline == (
        "Compression makes steps faster up to 10 Gbit/s Ethernet, the fastest simulated network: 2.00 times as fast there with "
        "QSGD; up to 1 Gbit/s Ethernet: 2.00 times as fast there with float16; on no network with bfloat16 (LeNet-5, 2 ranks)."
    )


def test_saved_bytes_and_lost_accuracy_are_those_of_the_dense_training(monkeypatch):
    def method(name, sent, *accuracies, **fields):
        same = {"model": "lenet5", "aggregation": "ring", "training": "synchronous", "bytes_sent_per_rank": sent}
        case = {"ranks": 4, "compression": name, **same, **fields}
        records = [Record(seed=n, final_accuracy=at, **case) for n, at in enumerate(accuracies)]
        return Row(f"ring + {name}", Scale(records))

    rows = [
        method("none", 1000, 0.9, 0.91, 0.92),
        method("fp16", 500, 0.899, 0.908, 0.918),
        method("top_k", 50, 0.8, 0.81, 0.83, settings={"pruning": {"sparsity": 0.9}}),
        method("one_bit", 1000, 0.9, 0.91, 0.92),
    ]
    monkeypatch.setattr(compression, "rows", lambda _: rows)
    asked = Found(["bytes"])
    headline, details, _, _ = compression.bytes_answer(asked)
    costs = "costs 0.2 percentage points of accuracy (95 %: at most 0.3) (LeNet-5, 4 ranks)."
    assert headline == f"Float16 sends 50 % of an uncompressed ring's bytes and {costs}"
    change = "changes the accuracy by -9.7 percentage points (-11.1 to -8.2) (LeNet-5, 4 ranks)."
    assert details == [f"Top-k with pruned weights sends 5.0 % of an uncompressed ring's bytes and {change}"]
    assert compression.bytes_answer(Found()) is None
