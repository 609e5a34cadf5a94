"""Steps to the target over the batch, by the law of McCandlish et al. 2018: steps = least * (1 + critical / batch)."""

import math

import pytest

from hpcdl.report.formats.verdicts import words
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import batches

CRITICAL, LEAST = 128, 40


def findings(hand, sizes=(16, 32, 64, 128, 256, 512), missing=(), noise=100.0, optimizers=("sgd",), before=0.9):
    """Two seeds; the evaluation before that at the target is after a share ``before`` of its steps."""
    for size, optimizer in [(size, optimizer) for size in sizes for optimizer in optimizers]:
        steps = round(LEAST * (1 + CRITICAL / size))
        for seed in (1, 2):
            accuracy = 0.5 if size in missing else 0.95
            hand.train(
                [[10.0] * 20] * 2, global_batch=size, seed=seed, target_accuracy=0.9, noise_scale_q4=noise,
                train_accuracy=1.0, sharpness=size / 4, optimizer=optimizer, evaluations=[
                    (int(steps * before), 0.9, 2.7, 0.6, 0.4, int(steps * before) * size),
                    (steps, 1.0, 3.0, 0.5, accuracy, steps * size),
                ],
            )  # fmt: skip
    return Findings(hand.read(), "run")


def test_the_knee_is_the_critical_batch_within_the_resolution_of_the_evaluations(hand):
    ((name, found),) = batches.methods_of(findings(hand)).items()
    assert [batch.steps.value for batch in found] == pytest.approx([360, 200, 120, 80, 60, 50])
    assert [batch.steps.low for batch in found] == pytest.approx([324, 180, 108, 72, 54, 45])
    assert found[0].efficiency == (1, 1, 1)
    assert found[1].efficiency == pytest.approx((0.9, 0.81, 1.0))
    # efficiency from a batch of 16: (1 + 16 / 128) / (1 + batch / 128), a half at 160; 0.9 of it at 131, at 192 by 0.9
    assert batches.knee(found) == pytest.approx((160, 131, 192), rel=0.04)
    assert name


@pytest.mark.parametrize(
    ("missing", "word", "tells"),
    [
        ((512,), "half", "up to 157 images (131 to 187)"),
        ((64, 256, 512), "missed", "up to 32 images; the next batch, 64, misses the target"),
        ((16, 32, 64, 128), "all", "up to 512 images, the largest batch (bound: beyond 512)"),
        ((16, 32, 64, 128, 256, 512), "none", "no batch reaches the target"),
    ],
)
def test_missed_batches_count_as_missed(hand, missing, word, tells):
    found = findings(hand, missing=missing)
    (verdict,) = batches.verdicts(found)
    assert verdict.word == word and tells in verdict.sentence
    assert f"Batches that miss the target with a seed or all: {', '.join(map(str, missing))}." in verdict.sentence
    (table,) = batches.page(found).tables
    shown = [dict(zip(table.header, cells, strict=True)) for cells in table.rows]
    assert [row["batch"] for row in shown if row["steps"] == "missed"] == [str(size) for size in missing]


@pytest.mark.parametrize(("noise", "word"), [(100.0, "is within"), (400.0, "is not within")])
def test_the_noise_scale_is_compared_with_the_knee(hand, noise, word):
    headline, details = batches.answer(findings(hand, noise=noise, optimizers=("sgd", "adam")))
    assert headline.startswith("Larger batches save steps, with at least half of perfect scaling, up to 157 im")
    assert details[-1].startswith(f"The noise scale {word}")
    assert words("batches") == {
        "half",
        "missed",
        "all",
        "none",
        "methods",
        "open",
        "noise agrees",
        "noise differs",
    }


def test_evaluations_that_are_too_seldom_tell_no_batch(hand):
    headline, _ = batches.answer(findings(hand, (16, 64, 256), before=0.2))
    open_end = "not determined up to which batch larger ones save steps, with at least half of perfect scaling: 2"
    assert open_end in headline and headline.endswith("to beyond 256 images.")


def test_rows_and_figure(hand):
    found = findings(hand)
    (table,) = batches.page(found).tables
    shown = dict(zip(table.header, table.rows[1], strict=True))
    assert (shown["batch"], shown["steps"], shown["bounds"]) == ("32", "200", "180 to 200")
    assert (shown["train - test"], shown["sharpness"]) == ("0.0500", "8.00")
    chart, sharp = batches.charts(found)
    assert chart.series[-1].points[-1].y == pytest.approx(360 * 16 / 512)
    assert math.isclose(chart.series[0].points[0].low, 324)
    assert [point.y for point in sharp.series[0].points] == [4, 8, 16, 32, 64, 128]
