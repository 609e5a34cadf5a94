"""Decisions by the time to a target: twins are tied, slower methods are found, missed targets are no times."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.analysis.run.deciding import Candidate, Field, area, decisions


def launch(method, seed, seconds, cell="lenet5"):
    """One launch that reaches 0.9 after ``seconds``, and 0.5 a second before; never if it is infinite."""
    reached = np.isfinite(seconds)
    return SimpleNamespace(
        fields={"model": cell, "ranks": 4, "training": method, "seed": seed, "target_accuracy": 0.9},
        evaluations={
            "step": np.array([2, 1]),
            "accuracy": np.array([0.9 if reached else 0.8, 0.5]),
            "training_seconds": np.array([seconds if reached else 99.0, seconds - 1]),
            "epoch": np.array([2.0, 1.0]),
        },
        disturbed=False,
    )


def cell(methods, name="lenet5"):
    candidates = []
    for method, times in methods.items():
        launches = [launch(method, seed, seconds, name) for seed, seconds in enumerate(times)]
        candidates.append(Candidate(launches[0].fields, launches))
    return Field("digits", (), candidates)


def spread(draw, mean, deviation=0.03, seeds=5):
    return mean * np.exp(deviation * draw.standard_normal(seeds))


def test_twins_are_rarely_decided_and_a_method_that_is_a_tenth_slower_is_nearly_always():
    draw = np.random.default_rng(1)
    twins, slower = [], []
    for _ in range(200):
        (one,) = decisions([cell({"a": spread(draw, 20), "twin": spread(draw, 20)})])
        twins.append(one.verdict)
        (one,) = decisions([cell({"slow": spread(draw, 22), "fast": spread(draw, 20)})])
        slower.append(one.verdict == "decided" and one.fields["training"] == "fast")
    assert twins.count("decided") <= 10
    assert sum(slower) >= 180


def test_a_sure_difference_below_the_least_effect_is_a_tie():
    (one,) = decisions([cell({"a": [10.0, 10.01, 9.99], "b": [10.4, 10.41, 10.39]})])
    assert one.verdict == "tied"
    (one,) = decisions([cell({"a": [10.0, 10.01, 9.99], "b": [10.6, 10.61, 10.59]})])
    assert one.verdict == "decided"


def test_one_seed_that_misses_the_target_is_no_time():
    (one,) = decisions(
        [cell({"sometimes": [5.0, 5.1, np.inf], "always": [20.0, 21.0, 22.0], "never": [np.inf] * 3})]
    )
    assert (one.verdict, one.fields["training"]) == ("decided", "always")
    assert [place.reached for place in one.places] == [True, False, False]
    assert one.ratios == [1, np.inf, np.inf]


def test_cells_are_adjusted_together():
    """A difference that is significant alone is none among many cells of twins."""
    draw = np.random.default_rng(3)
    close = {"a": [10.0, 10.4, 10.2], "b": [10.8, 11.5, 11.1]}
    (alone,) = decisions([cell(close)])
    assert alone.verdict == "decided"
    others = [cell({"a": spread(draw, 20), "b": spread(draw, 20)}, f"net{n}") for n in range(30)]
    assert decisions([cell(close), *others])[0].verdict == "tied"


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [([1, 1, 1], 1), ([10, 1], 0.5), ([np.inf, np.inf], 0), ([1000.0, np.sqrt(10)], 0.25)],
)
def test_area_under_a_performance_profile(ratios, expected):
    assert area(ratios) == pytest.approx(expected)
