"""Section Compression: the verdict, the rival of each row, and the break-even bandwidth."""

import pytest

from hpcdl.report.grouping import Row, Scale
from hpcdl.report.sections import break_even, compression


def row(name, **fields):
    records = [{"ranks": 4, "seed": seed, **fields} for seed in (1, 2, 3)]
    return Row(name, Scale(records))


DENSE = row("dense", step_seconds=0.1, bytes_sent_per_rank=1e6, final_accuracy=0.9, compression="none")
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


def test_break_even_is_saved_bytes_by_added_seconds():
    assert compression._cost(SPARSE, DENSE)[-1] == "110 MB/s"


def test_more_bytes_never_pay():
    assert compression._cost(DENSE, row("small", step_seconds=1, bytes_sent_per_rank=10))[-1] == "-"
    larger = row("l", step_seconds=1, bytes_sent_per_rank=1e7, encode_seconds=1, decode_seconds=1)
    assert compression._cost(larger, DENSE)[-1] == "none"


def test_accuracies_are_compared_seed_by_seed():
    assert compression._difference(SPARSE, DENSE).startswith("-0.5 (")
    assert compression._difference(SPARSE, None) == "-"


@pytest.mark.parametrize("step, words", [(0.099, "does not pay here"), (0.04, "pays in 1 of 1 cases")])
def test_the_verdict_says_whether_it_pays(monkeypatch, step, words):
    fast = row("sparse", step_seconds=step, compression="top_k")
    monkeypatch.setattr(compression, "rows", lambda _: [DENSE, fast])

    class Found:
        problems = ([],)

    assert words in compression.answer(Found()).headline


@pytest.mark.parametrize(
    "seconds, words",
    [(1.0, "beats the overlapped 16-bit ring in 0 of 2"), (0.5, "in 2 of 2 simulated set-ups: 2.00 times")],
)
def test_set_ups_are_counted(seconds, words):
    one = {
        "kind": "break_even",
        "compressed_seconds": seconds,
        "half_precision_seconds": 1.0,
        "dense_seconds": 1.2,
        "bandwidth_bytes_per_second": 1e9,
        "network": "n",
        "dense_bytes": 10,
        "step_bytes": 1,
        "encode_seconds": 0.1,
        "decode_seconds": 0.1,
    }

    class Found:
        records = (one, one)

    assert words in break_even.answer(Found()).headline
    assert len(break_even.page(Found()).tables) == 2
