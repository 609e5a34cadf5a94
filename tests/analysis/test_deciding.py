"""Decisions by the time to a target: twins are tied, slower methods are found, missed targets are no times."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.analysis.run.deciding import Candidate, Field, Ranked, area, decisions, fields_of, rivals
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.judging import Side
from hpcdl.trace.recorder import EVALUATION, Evaluation


def launch(method, seed, seconds, configuration="lenet5", *, grid=0.01, budget=99.0):
    """One launch, evaluated every ``grid`` seconds, that reaches 0.9 after ``seconds`` if its ``budget`` allows."""
    last = np.floor(budget / grid + 1e-9) * grid
    at = np.ceil(seconds / grid - 1e-9) * grid if np.isfinite(seconds) else np.inf
    reached = at <= last + 1e-9
    end = at if reached else last
    return SimpleNamespace(
        record=Record(model=configuration, ranks=4, training=method, seed=seed, target_accuracy=0.9),
        evaluations=np.array(
            [
                Evaluation(2, 2.0, end, 0.1, 0.9 if reached else 0.8, 64),
                Evaluation(1, 1.0, end - grid, 0.2, 0.5, 32),
            ],
            EVALUATION,
        ),
        disturbed=False,
        diverged=None,
    )


def configuration(methods, name="lenet5", grids=(0.01, 0.01), budgets=(99.0, 99.0, 99.0)):
    candidates = []
    for (method, times), budget, grid in zip(methods.items(), budgets, (*grids, 0.01, 0.01), strict=False):
        seeds = [[launch(method, seed, time, name, grid=grid, budget=budget)] for seed, time in enumerate(times)]
        candidates.append(Candidate(seeds))
    return Field((), candidates)


def spread(draw, mean, deviation=0.03, seeds=5):
    return mean * np.exp(deviation * draw.standard_normal(seeds))


GRIDS = {"fine": (0.01, 0.01), "unequal": (0.25, 0.3), "coarse": (0.25, 0.25)}
BUDGETS = {"long": (9.0, 9.0), "1 and 2": (1.0, 2.0), "0.8 and 3": (0.8, 3.0), "short": (1.0, 1.0)}


def decided(draw, factor, deviation, seeds, grids, budgets):
    """Return whether a configuration of two methods is won; their median time is about one second."""
    middle = np.exp(draw.uniform(-0.15, 0.15))
    times = {name: spread(draw, middle * by, deviation, seeds) for name, by in zip("ab", (1, factor), strict=True)}
    return decisions([configuration(times, grids=grids, budgets=budgets)])[0].is_won


def test_a_field_has_one_set_of_conditions_and_names_what_differs():
    launches = {method: launch(method, 0, 5.0) for method in ("quiet", "slow", "traced", "alone")}
    for each in launches.values():
        each.record.shares = "3:1"
    launches["slow"].record.straggler, launches["slow"].record.settings = "rank 1 waits", {"straggler": 1}
    launches["traced"].record.settings = {"trace": "alternating"}
    launches["alone"].record.independent = True
    fields = fields_of(launches.values())
    assert [(field.conditions, len(field.candidates)) for field in fields] == [((), 2), (("rank 1 waits",), 1)]


SEEDS = ((3, 0.5), (4, 0.2), (6, 0.05), (6, 0.2))


@pytest.mark.parametrize(
    ("number", "grids", "budgets"), [(n, *both) for n, both in enumerate(product(GRIDS, BUDGETS))]
)
def test_equal_methods_are_rarely_decided_whatever_their_budgets_and_grids(number, grids, budgets):
    """Each pair of grids and budgets with one sample of seeds; with each sample in turn."""
    seeds, deviation = SEEDS[(number + number // len(SEEDS)) % len(SEEDS)]
    draw = np.random.default_rng(2)
    won = [decided(draw, 1.0, deviation, seeds, GRIDS[grids], BUDGETS[budgets]) for _ in range(60)]
    assert np.mean(won) <= 0.11  # 5 %, and two standard errors


def test_a_method_that_takes_half_as_long_again_is_nearly_always_found():
    draw = np.random.default_rng(2)
    assert np.mean([decided(draw, 1.5, 0.2, 6, (0.01, 0.01), (9.0, 9.0)) for _ in range(100)]) >= 0.85


def test_a_method_whose_budget_ends_before_the_winner_is_not_ruled_out():
    """The first reaches the target after 15 s; the other trained for 10 s."""
    times = {"long": [15.0, 15.1, 14.9], "short": [np.inf] * 3}
    words = {budget: decisions([configuration(times, budgets=(99.0, budget))])[0] for budget in (10.0, 30.0)}
    assert (words[10.0].verdict, words[10.0].is_won) == ("undecided", False)
    assert (words[30.0].verdict, words[30.0].is_won) == ("alone", True)
    assert words[30.0].lead.low > 1.05 and np.isinf(words[30.0].lead.high)
    assert words[30.0].time == pytest.approx((15.0 * 15.1 * 14.9) ** (1 / 3), rel=1e-4)
    rare = {"a": [1.0, 1.01, 1.02, np.inf], "b": [np.inf] * 4}
    (seldom,) = decisions([configuration(rare, budgets=(3.0, 900.0))])
    assert (seldom.verdict, seldom.is_won, seldom.time) == ("alone", False, None)


def test_a_missed_seed_is_a_time_up_to_the_budget():
    """The budget is the shortest training of a method that missed the target with some seeds: 98 s."""
    times = {"sometimes": [5.0, 5.1, np.inf], "always": [20.0, 21.0, 22.0], "never": [np.inf] * 3}
    (one,) = decisions([configuration(times | {"seldom": [7.0, 7.1, np.inf]}, budgets=(99.0, 99.0, 97.0, 98.0))])
    assert (one.verdict, one.budget, one.first.record.training) == ("undecided", 98, "sometimes")
    states = ["some missed", "some missed", "reached", "not reached"]
    assert [candidate.state for candidate in one.candidates] == states
    assert one.first.mean(one.budget) == pytest.approx((5 * 5.1 * 98) ** (1 / 3))
    assert one.ratios == [np.inf, np.inf, 1, np.inf]


def test_a_method_with_too_few_usable_seeds_leaves_its_configuration_open():
    empty = {"evaluations": {}}
    for cause, loss in {"disturbed": {"disturbed": True}, "failed": empty, "not evaluated": empty}.items():
        launches = [launch(method, seed, 20.0 + seed) for method in "ab" for seed in range(3)]
        vars(launches[3]).update(loss)
        launches[3].record.error = "it failed" if cause == "failed" else None
        (one,) = decisions(fields_of(launches))
        assert (one.verdict, [candidate.record.training for candidate in one.open]) == ("not decided", ["b"])
        assert one.candidates[1].lost == {cause: 1}


def test_a_seed_that_diverged_missed_the_target_for_ever():
    seeds = [launch("a", seed, seconds) for seed, seconds in enumerate((5.0, np.inf, np.inf))]
    seeds[2].diverged = (1, 0)
    candidate = Candidate([[each] for each in seeds])
    assert candidate.seconds.tolist() == [pytest.approx(5), np.inf, np.inf]
    assert np.exp(candidate.bounds(200.0).low).tolist() == pytest.approx([4.99, 99, 200])


def test_a_method_with_one_value_is_never_told_from_the_best():
    times = {"a": [9.0, 9.1], "b": [8.0, 9.2], "c": [1.0, 1.01], "d": [1.0]}
    assert rivals([[Ranked(name, Side(dict(enumerate(values)))) for name, values in times.items()]]) == [
        ["b", "d"]
    ]


def test_a_configuration_has_one_number_of_ranks():
    field = configuration({method: [5.0, 5.1, 5.2] for method in "abc"})
    for (each,) in field.candidates[2].seeds:
        each.record.ranks = 8
    (decision,) = decisions([field])
    assert [candidate.record.training for candidate in decision.candidates] == ["a", "b"]


def test_a_sure_difference_below_the_least_effect_or_one_of_many_configurations_is_a_tie():
    """A difference that is significant alone is none among many configurations of twins."""
    times = np.array([10.0, 10.01, 9.99])
    for later, word in ((1.04, "tied"), (1.06, "decided")):
        assert decisions([configuration({"a": times, "b": later * times})])[0].verdict == word
    draw = np.random.default_rng(3)
    close = {"a": [10.0, 10.4, 10.2], "b": [10.8, 11.5, 11.1]}
    assert decisions([configuration(close)])[0].verdict == "decided"
    others = [configuration({"a": spread(draw, 20), "b": spread(draw, 20)}, f"net{n}") for n in range(30)]
    assert decisions([configuration(close), *others])[0].verdict == "tied"


def test_area_under_a_performance_profile():
    for ratios, expected in [([1, 1, 1], 1), ([10, 1], 0.5), ([np.inf, np.inf], 0), ([1000.0, np.sqrt(10)], 0.25)]:
        assert area(ratios) == pytest.approx(expected)
