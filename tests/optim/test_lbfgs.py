"""The two-loop recursion compared with explicit matrices, on whole vectors and shards."""

import numpy as np
import pytest
from contract.quartic import inverse_hessian

from hpcdl.fabric.vectors import partition
from hpcdl.optim.parts.lbfgs import (
    MIN_CURVATURE,
    apply_operation,
    curvature_pair,
    two_loop,
)

GRADIENT, DIRECTION, NEW, FIRST = range(4)


def run(program, shards):
    """Run a program on vectors cut into shards, as Sandblaster's coordinator does; return its result."""
    operation = next(program)
    while True:
        try:
            operation = program.send(sum([apply_operation(operation, vectors) for vectors in shards]))
        except StopIteration as stop:
            return stop.value


def cut(vectors, parts):
    return [list(shard) for shard in zip(*(partition(vector, parts) for vector in vectors), strict=True)]


def quadratic(size, seed):
    """Return a positive definite matrix with eigenvalues from 0.1 to 10."""
    random = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(random.normal(size=(size, size)))
    return basis * np.geomspace(0.1, 10, size) @ basis.T


def steps_and_changes(size, count, seed):
    steps = np.random.default_rng(seed + 1).normal(size=(count, size))
    return steps, steps @ quadratic(size, seed)


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
    steps, changes = steps_and_changes(size, count, seed=count)
    gradient = np.random.default_rng(9).normal(size=size)
    found = direction(gradient, steps, changes, parts)
    np.testing.assert_allclose(
        found, -inverse_hessian(size, [*zip(steps, changes, strict=True)]) @ gradient, rtol=0, atol=1e-8
    )


def test_a_pair_without_curvature_is_not_kept():
    for factor in [-1.0, 0.0, MIN_CURVATURE / 2]:
        step = np.array([3.0, -4.0])
        vectors = [np.zeros(2), step.copy(), factor * step]
        assert run(curvature_pair(GRADIENT, NEW, DIRECTION, 1.0), [vectors]) is None
