"""Decisions by the time to a target: twins are tied, slower methods are found, missed targets are no times."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.analysis.run.deciding import Candidate, Field, area, decisions, fields_of
from hpcdl.analysis.run.record import Record


def launch(method, seed, seconds, cell="lenet5"):
    """One launch that reaches 0.9 after ``seconds``, and 0.5 a second before; never if it is infinite."""
    reached = np.isfinite(seconds)
    return SimpleNamespace(
        record=Record(model=cell, ranks=4, training=method, seed=seed, target_accuracy=0.9),
        evaluations={
            "step": np.array([2, 1]),
            "accuracy": np.array([0.9 if reached else 0.8, 0.5]),
            "training_seconds": np.array([seconds if reached else 99.0, seconds - 1 if reached else 98.0]),
            "epoch": np.array([2.0, 1.0]),
        },
        disturbed=False,
        diverged=None,
    )


def cell(methods, name="lenet5"):
    candidates = []
    for method, times in methods.items():
        launches = [launch(method, seed, seconds, name) for seed, seconds in enumerate(times)]
        candidates.append(Candidate(launches[0].record, launches))
    return Field("digits", (), candidates)


def spread(draw, mean, deviation=0.03, seeds=5):
    return mean * np.exp(deviation * draw.standard_normal(seeds))


def test_equal_methods_are_rarely_decided_whatever_seeds_they_miss():
    for missing in [0, 0.1, 0.2]:
        draw = np.random.default_rng(1)
        equal = [
            [np.where(draw.random(5) < missing, np.inf, spread(draw, 20, 0.1)) for _ in "ab"] for _ in range(200)
        ]
        decided = [decisions([cell({"a": a, "b": b})])[0].verdict == "decided" for a, b in equal]
        assert np.mean(decided) <= 0.05


def test_a_method_that_is_a_fifth_faster_is_nearly_always_decided():
    draw = np.random.default_rng(2)
    pairs = [{"slow": spread(draw, 25, 0.1), "fast": spread(draw, 20, 0.1)} for _ in range(200)]
    found = [decisions([cell(pair)])[0] for pair in pairs]
    assert np.mean([one.verdict == "decided" and one.record.training == "fast" for one in found]) >= 0.8


def test_a_sure_difference_below_the_least_effect_is_a_tie():
    (one,) = decisions([cell({"a": [10.0, 10.01, 9.99], "b": [10.4, 10.41, 10.39]})])
    assert one.verdict == "tied"
    (one,) = decisions([cell({"a": [10.0, 10.01, 9.99], "b": [10.6, 10.61, 10.59]})])
    assert one.verdict == "decided"


def test_a_missed_seed_is_a_time_up_to_the_budget():
    """The budget is the longest training of the method that missed the target: 99 s."""
    times = {"sometimes": [5.0, 5.1, np.inf], "always": [20.0, 21.0, 22.0], "never": [np.inf] * 3}
    (one,) = decisions([cell(times)])
    assert (one.verdict, one.budget, one.record.training) == ("tied", 99, "sometimes")
    assert [place.state for place in one.places] == ["some missed", "reached", "not reached"]
    assert one.places[0].mean(one.budget) == pytest.approx((5 * 5.1 * 99) ** (1 / 3))
    assert one.ratios == [np.inf, 1, np.inf]


def test_a_method_with_too_few_usable_seeds_leaves_its_cell_open():
    for cause, loss in [
        ("disturbed", {"disturbed": True}),
        ("failed", {"evaluations": {}}),
        ("not evaluated", {"evaluations": {}}),
    ]:
        launches = [launch(method, seed, 20.0 + seed) for method in "ab" for seed in range(3)]
        vars(launches[3]).update(loss)
        launches[3].record.error = "it failed" if cause == "failed" else None
        (one,) = decisions(fields_of(launches))
        assert (one.verdict, [place.candidate.record.training for place in one.open]) == ("not decided", ["b"])
        assert one.places[1].lost == {cause: 1}


def test_cells_are_adjusted_together():
    """A difference that is significant alone is none among many cells of twins."""
    draw = np.random.default_rng(3)
    close = {"a": [10.0, 10.4, 10.2], "b": [10.8, 11.5, 11.1]}
    (alone,) = decisions([cell(close)])
    assert alone.verdict == "decided"
    others = [cell({"a": spread(draw, 20), "b": spread(draw, 20)}, f"net{n}") for n in range(30)]
    assert decisions([cell(close), *others])[0].verdict == "tied"


def test_area_under_a_performance_profile():
    for ratios, expected in [([1, 1, 1], 1), ([10, 1], 0.5), ([np.inf, np.inf], 0), ([1000.0, np.sqrt(10)], 0.25)]:
        assert area(ratios) == pytest.approx(expected)
