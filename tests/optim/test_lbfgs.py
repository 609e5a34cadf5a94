"""The two-loop recursion compared with explicit matrices, on vectors and shards; the strong Wolfe conditions."""

from math import cos, inf, isnan, log, nan, sin

import numpy as np
import pytest
from contract.quartic import inverse_hessian

from hpcdl.fabric.vectors import partition
from hpcdl.optim.parts.lbfgs import (
    CURVATURE,
    MIN_CURVATURE,
    SUFFICIENT_DECREASE,
    apply_operation,
    curvature_pair,
    strong_wolfe,
    two_loop,
)

GRADIENT, DIRECTION, NEW, FIRST = range(4)


def answered(program, answer):
    """Return the result of a program, whose requests are answered."""
    request = next(program)
    while True:
        try:
            request = program.send(answer(request))
        except StopIteration as stop:
            return stop.value


def run(program, shards):
    """Run a program on vectors cut into shards, as Sandblaster's coordinator does; return its result."""
    return answered(program, lambda operation: sum([apply_operation(operation, vectors) for vectors in shards]))


def cut(vectors, parts):
    return [list(shard) for shard in zip(*(partition(vector, parts) for vector in vectors), strict=True)]


def quadratic(size, seed):
    """Return a positive definite matrix with eigenvalues from 0.1 to 10."""
    random = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(random.normal(size=(size, size)))
    return basis * np.geomspace(0.1, 10, size) @ basis.T


def direction(gradient, steps, changes, parts):
    """Return the direction from the recursion on ``parts`` shards, with its own pairs."""
    size = len(gradient)
    vectors = [gradient.copy(), np.zeros(size), np.zeros(size), *(np.zeros(size) for _ in range(2 * len(steps)))]
    shards = cut(vectors, parts)
    pairs = []
    for i, (s, y) in enumerate(zip(steps, changes, strict=True)):
        # a step of half of twice s, from gradient g to g + y
        vectors[DIRECTION][:] = 2 * s
        vectors[GRADIENT][:] = gradient
        vectors[NEW][:] = gradient + y
        pair = run(curvature_pair(GRADIENT, NEW, DIRECTION, 0.5), shards)
        assert pair.curvature == pytest.approx(s @ y)
        assert pair.square == pytest.approx(y @ y)
        vectors[FIRST + 2 * i][:], vectors[FIRST + 2 * i + 1][:] = vectors[pair.s], vectors[pair.y]
        pairs.append(pair._replace(s=FIRST + 2 * i, y=FIRST + 2 * i + 1))
    vectors[GRADIENT][:] = gradient
    run(two_loop(GRADIENT, DIRECTION, pairs), shards)
    np.testing.assert_array_equal(vectors[GRADIENT], gradient)
    return vectors[DIRECTION]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 7, 16])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 10])
def test_direction_equals_the_matrix_product(count, parts):
    size = 13
    steps = np.random.default_rng(count + 1).normal(size=(count, size))
    changes = steps @ quadratic(size, count)
    gradient = np.random.default_rng(9).normal(size=size)
    expected = -inverse_hessian(size, [*zip(steps, changes, strict=True)]) @ gradient
    np.testing.assert_allclose(direction(gradient, steps, changes, parts), expected, rtol=0, atol=1e-8)


def test_a_pair_without_curvature_is_not_kept():
    for factor in [-1.0, 0.0, MIN_CURVATURE / 2]:
        step = np.array([3.0, -4.0])
        vectors = [np.zeros(2), step.copy(), factor * step]
        assert run(curvature_pair(GRADIENT, NEW, DIRECTION, 1.0), [vectors]) is None


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
    tried = []
    length = answered(strong_wolfe(loss, slope, first, most), lambda t: tried.append(t) or function(t))
    return length, tried


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
    decreased = [t for t in tried if function(t)[0] <= start + SUFFICIENT_DECREASE * t * slope]
    fit = [t for t in decreased if not isnan(function(t)[1])]
    assert length in fit if length else not fit


def test_a_direction_that_does_not_descend():
    """If the slope is wrong, as the slope of a float32 gradient can be, the length is zero."""
    assert search(lambda t: (1 + t, -1.0), 1.0, 20)[0] == 0
    for slope in (0.0, 1.0, nan):
        with pytest.raises(ValueError, match="does not descend"):
            next(strong_wolfe(1.0, slope, 1.0, 5))
