"""Section Compression: the verdict, the rival of each row, and the break-even bandwidth."""

import math
from math import nan

import pytest

from hpcdl.analysis.run.record import Record
from hpcdl.report.run.findings import findings
from hpcdl.report.run.grouping import Row, Scale
from hpcdl.report.sections import compression


def row(name, **fields):
    records = [Record(ranks=4, seed=seed, **fields) for seed in (1, 2, 3)]
    return Row(name, Scale(records))


DENSE = row(
    "dense",
    step_seconds=0.1,
    step_seconds_low=0.09,
    bytes_sent_per_rank=1e6,
    final_accuracy=0.9,
    compression="none",
)

SPARSE = row(
    "sparse",
    step_seconds=0.04,
    compute_seconds=0.02,
    bytes_sent_per_rank=1e4,
    encode_seconds=0.006,
    decode_seconds=0.003,
    final_accuracy=0.895,
    compression="top_k",
)


def test_below_the_bandwidth_the_saved_bytes_take_longer_than_the_added_work():
    for saved, added, expected in [
        (1e6, 0.01, 1e8),
        (1e6, 0, math.inf),
        (0, 0.01, 0),
        (-1, 0, 0),
        (0, -1, math.inf),
    ]:
        assert compression.bandwidth(saved, added) == expected


def test_break_even_is_saved_bytes_by_added_seconds():
    assert compression.Pair(SPARSE, DENSE).break_even == "110 MB/s"


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"step_seconds": 0.099}, "does not pay here: sparse has 1.01 times the dense speed."),
        ({"step_seconds": 0.04}, "By time alone, compression pays in 1 of 1 cases"),
        ({"step_seconds": 0.04, "step_seconds_high": 0.08}, "pays in 1 of 1 cases"),
        ({"step_seconds": 0.04, "step_seconds_high": 0.095}, "is inconclusive"),
        ({"step_seconds": 0.04, "disturbed": "load"}, "is inconclusive"),
        ({"step_seconds": 0.2, "disturbed": "load"}, "were disturbed"),
        ({"step_seconds": 0.04, "final_accuracy": 0.896}, "Compression pays in 1 of 1 cases"),
        ({"step_seconds": 0.01, "final_accuracy": 0.572}, "1 of 1 cases are faster, all of them less accurate"),
    ],
)
def test_the_verdict_says_whether_it_pays(monkeypatch, fields, words):
    fast = row("sparse", compression="top_k", **fields)
    monkeypatch.setattr(compression, "rows", lambda _: [DENSE, fast])
    monkeypatch.setattr(compression, "certainty", lambda *_: "3 seeds")

    class Found:
        problems = ([],)

    assert words in compression.cost_answer(Found()).headline


def compressed_run(hand):
    """Dense and compressed training on 2 ranks; residuals of 1, 2, 3 and 4 times the gradient."""
    names = ("dense", "one", "two", "three", "four", "five", "six")
    for number, name in enumerate(names):
        compression = f"top_k(density=0.0{number},code=rice)" if number else "none"
        residuals = [[(4 * step, 2.0 * (step + 1), 2.0) for step in range(4)]] * 2 if number else None
        hand.train(
            [[10.0 + number] * 8] * 2,
            case=name,
            aggregation="sharded_parameter_server",
            compression=compression,
            compression_ratio=2.0 if number else None,
            residual_bytes=4000 if number else None,
            residuals=residuals,
            evaluations=[(8, 1.0, 0.1, 0.5, 0.9, 8, nan, 3.0, 0.5, 0.5)],
        )
    return hand.read()


def test_residuals_are_shown_by_quarters(hand):
    found = findings([compressed_run(hand)])[0]
    assert found.records[1].residual_to_gradient_q3 == pytest.approx(3)
    (table,) = compression.fidelity_page(found).tables
    assert table.header[-5:] == ("quarter 1", "quarter 2", "quarter 3", "quarter 4", "memory")
    assert table.rows[0][-5:-1] == ("1.00", "2.00", "3.00", "4.00")
