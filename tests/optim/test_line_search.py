"""The strong Wolfe conditions, on difficult functions."""

from math import cos, inf, log, nan, sin

import pytest

from hpcdl.optim.parts.lbfgs import CURVATURE, SUFFICIENT_DECREASE, strong_wolfe

FUNCTIONS = {
    "parabola": lambda t: ((t - 3) ** 2, 2 * (t - 3)),
    "steep": lambda t: (1e4 * (t - 1e-3) ** 2, 2e4 * (t - 1e-3)),
    "far": lambda t: ((t / 500 - 1) ** 2, (t / 500 - 1) / 250),
    "waves": lambda t: (0.02 * (t - 5) ** 2 + sin(3 * t + 2), 0.04 * (t - 5) + 3 * cos(3 * t + 2)),
    # More and Thuente 1994, functions 5.1 and 5.2
    "5.1": lambda t: (-t / (t * t + 2), (t * t - 2) / (t * t + 2) ** 2),
    "5.2": lambda t: ((t + 0.004) ** 5 - 2 * (t + 0.004) ** 4, 5 * (t + 0.004) ** 4 - 8 * (t + 0.004) ** 3),
    "wall": lambda t: (-log(1 - t) - 5 * t, 1 / (1 - t) - 5) if t < 1 else (inf, nan),
    "undefined": lambda t: ((t - 0.01) ** 2, 2 * (t - 0.01)) if t < 0.1 else (nan, nan),
}


def search(function, first, most):
    """Return the length found, and all trials."""
    loss, slope = function(0.0)
    program = strong_wolfe(loss, slope, first, most)
    tried = [next(program)]
    while True:
        try:
            tried.append(program.send(function(tried[-1])))
        except StopIteration as stop:
            return stop.value, tried


@pytest.mark.parametrize("first", [1e-3, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_satisfies_the_conditions_and_is_the_last_trial(name, first):
    function = FUNCTIONS[name]
    length, tried = search(function, first, 60)
    (start, slope), (loss, left) = function(0.0), function(length)
    assert length > 0
    assert loss <= start + SUFFICIENT_DECREASE * length * slope
    assert abs(left) <= -CURVATURE * slope
    assert length == tried[-1]
    assert tried[0] == first


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("first", [1e-3, 1.0, 1000.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_with_too_few_trials_the_best_decrease_is_returned(name, first, most):
    function = FUNCTIONS[name]
    start, slope = function(0.0)
    length, tried = search(function, first, most)
    assert len(tried) <= most
    fit = [
        t
        for t in tried
        if function(t)[0] <= start + SUFFICIENT_DECREASE * t * slope and function(t)[1] == function(t)[1]
    ]
    if length == 0:
        assert not fit
    else:
        assert length in fit


def test_an_increasing_function_gives_length_zero():
    """The slope is wrong, as the slope of a float32 gradient can be."""
    assert search(lambda t: (1 + t, -1.0), 1.0, 20)[0] == 0


def test_a_direction_that_does_not_descend_is_refused():
    for slope in (0.0, 1.0, nan):
        with pytest.raises(ValueError, match="does not descend"):
            next(strong_wolfe(1.0, slope, 1.0, 5))
