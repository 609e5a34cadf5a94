"""Steps to the target over the batch, by the law of McCandlish et al. 2018: steps = least * (1 + critical / batch)."""

import math

import pytest

from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import several
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
    run = findings(hand)
    (found,) = batches.methods_of(run).values()
    assert [batch.steps.value for batch in found] == pytest.approx([360, 200, 120, 80, 60, 50])
    assert [batch.steps.low for batch in found] == pytest.approx([324, 180, 108, 72, 54, 45])
    assert found[0].efficiency == (1, 1, 1)
    assert found[1].efficiency == pytest.approx((0.9, 0.81, 1.0))
    # efficiency from a batch of 16: (1 + 16 / 128) / (1 + batch / 128), a half at 160; 0.9 of it at 131, at 192 by 0.9
    assert batches.knee(found) == pytest.approx((160, 131, 192), rel=0.04)
    (table,) = batches.page(run).tables
    shown = dict(zip(table.header, table.rows[1], strict=True))
    assert (shown["batch"], shown["steps"], shown["range of steps"]) == ("32", "200", "180 to 200")
    assert (shown["train - test"], shown["sharpness"]) == ("5.0 %", "8.00")
    chart, sharp = batches.charts(run)
    assert chart.series[-1].points[-1].y == pytest.approx(360 * 16 / 512)
    assert math.isclose(chart.series[0].points[0].low, 324)
    assert [point.y for point in sharp.series[0].points] == [4, 8, 16, 32, 64, 128]


SELDOM = {"sizes": (16, 64, 256), "before": 0.2}  # evaluated so seldom that no batch is found
NEED = "need at most twice the steps of perfect scaling"


@pytest.mark.parametrize(
    ("missing", "headline", "more"),
    [
        ((512,), f"Batches of up to 157 images (131 to 187) {NEED}.", {}),
        ((64, 256, 512), f"Batches of up to 32 images {NEED}; training with 64 misses the target.", {}),
        ((16, 32, 64, 128), f"Batches of up to 512 images, the most tested, {NEED} (limit: more than 512).", {}),
        ((16, 32, 64, 128, 256, 512), "Training misses the target with every batch.", {}),
        ((), f"Not decided which batches {NEED}: the limit is 27 to more than 256 images.", SELDOM),
    ],
)
def test_missed_batches_count_as_missed(hand, missing, headline, more):
    found = findings(hand, missing=missing, **more)
    answer = batches.answer(found)
    missed = f"At least one seed misses the target with batches of {several([*map(str, missing)])} images."
    assert answer.headline == headline
    assert (missed in answer.details) is bool(missing)
    (table,) = batches.page(found).tables
    shown = [dict(zip(table.header, cells, strict=True)) for cells in table.rows]
    assert [row["batch"] for row in shown if row["steps"] == "missed"] == [str(size) for size in missing]


@pytest.mark.parametrize(("noise", "near"), [(100.0, "within"), (400.0, "not within")])
def test_methods_costs_and_the_noise_scale_are_details(hand, noise, near):
    answer = batches.answer(findings(hand, noise=noise, optimizers=("sgd", "adam")))
    assert answer.headline == f"Batches of up to 157 images (131 to 187) {NEED} (SGD)."
    assert answer.details[:2] == [
        "Not decided which method saves most steps: the intervals of all methods overlap.",
        "From batches of 16 to batches of 512 images the final accuracy changes by +0.0 percentage points (+0.0 to +0.0) (SGD).",
    ]
    scale = f"The gradient noise scale, {noise:.0f} images, is {near} a factor of 2 of 157 (Adam)."
    assert answer.details[-1] == scale


@pytest.mark.parametrize(
    ("times", "doubt"), [((8.0, 8.0), ""), ((0.5, 8.0), "Not decided which batch ends sharper: ")]
)
def test_sharpness_of_the_largest_batch_is_compared_by_seeds(hand, times, doubt):
    """Equal steps of both batches; one of the four trainings ends with no negative eigenvalue."""
    for seed, factor in enumerate(times):
        for size, sharp, least in ((16, 2.0, -0.1), (64, 2.0 * factor, 0.1 - seed)):
            more = {"global_batch": size, "sharpness": sharp, "smallest_eigenvalue": least, "seed": seed}
            hand.train([[10.0] * 20] * 2, **more)
    headline, details, basis, _ = batches.sharpness_answer(Findings(hand.read(), "run"))
    assert (len(basis), headline.startswith(doubt)) == (4, True)
    assert "after equal steps batches of 64 images end " in headline.lower()
    assert headline.endswith(" times as sharp as batches of 16 (LeNet-5, 2 ranks).")
    assert details[0].startswith("At the end of 3 of 4 trainings the smallest eigenvalue is negative, as at a sad")
