"""Steps to the target over the batch, by the law of McCandlish et al. 2018: steps = least * (1 + critical / batch)."""

import pytest

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import batches

CRITICAL, LEAST = 128, 40


def findings(hand, sizes=(16, 32, 64, 128, 256, 512), missing=None):
    for size in sizes:
        steps = round(LEAST * (1 + CRITICAL / size))
        for seed in (1, 2):
            accuracy = 0.5 if size == missing else 0.95
            hand.train(
                [[10.0] * 20] * 2, global_batch=size, seed=seed, target_accuracy=0.9, noise_scale_q4=100.0,
                train_accuracy=1.0, sharpness=size / 4,
                evaluations=[(steps, 1.0, 3.0, 0.5, accuracy, steps * size)],
            )  # fmt: skip
    return Findings(hand.read(), "run")


def test_the_knee_is_the_critical_batch(hand):
    ((name, found),) = batches._methods(findings(hand)).items()
    assert [batch.steps for batch in found] == pytest.approx([360, 200, 120, 80, 60, 50])
    assert batches.efficiencies(found)[0] == 1
    # efficiency from a batch of 16: (1 + 16 / 128) / (1 + batch / 128), a half at 160
    assert batches.knee(found) == pytest.approx(160, rel=0.03)
    assert name


def test_rows_figure_and_answer(hand):
    found = findings(hand)
    (table,) = batches.page(found).tables
    assert [row[1:3] for row in table.rows[:2]] == [("16", "360"), ("32", "200")]
    shown = dict(zip(table.header, table.rows[1], strict=True))
    assert (shown["train - test"], shown["sharpness"]) == ("0.0500", "8.00")
    assert batches.answer(found).headline.endswith("up to 160.") or "up to 15" in batches.answer(found).headline
    (chart,) = batches.charts(found)
    assert chart.series[-1].points[-1].y == pytest.approx(360 * 16 / 512)
