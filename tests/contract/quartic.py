"""An ill-conditioned quartic loss in place of a network, and L-BFGS on it in a plain loop with matrices."""

from functools import cache

import numpy as np

from contract import quadratic
from hpcdl.optim.parts.lbfgs import strong_wolfe
from hpcdl.training.sandblaster import sandblaster

STEPS = 14
SIZE = 7
HISTORY = 3
TOLERANCE = 1e-8


@cache
def coefficients(size):
    return np.geomspace(0.1, 30, size)


class QuarticLoss(quadratic.QuadraticLoss):
    """Sum of h (w - x)^2 / 2 + (w - x)^4 / 4 over images x and parameters w, with another h for each w."""

    def slopes(self, distance):
        return (coefficients(distance.shape[1]) * distance + distance**3).sum(axis=0)

    def value(self, distance):
        return float((coefficients(distance.shape[1]) * distance**2 / 2 + distance**4 / 4).sum())


def session(recorder=None, *, size=SIZE, dtype="float64", **settings):
    """Return one rank's session, by default with all images in every batch."""
    defaults = {"replica": QuarticLoss(size, dtype), "steps": STEPS, "learning_rate": lambda _step: 1.0}
    return quadratic.session(size, dtype, recorder, **defaults | settings)


async def descend(comm, mine, **settings):
    """Train by Sandblaster with a short history; return the final parameters."""
    await sandblaster(comm, mine, **{"history": HISTORY, "portions_per_worker": 3, "push_every": 2} | settings)
    return mine.replica.parameters


@cache
def by_one_loop(size=SIZE, steps=STEPS, history=HISTORY):
    """Return the final parameters, without portions, shards, ranks or the two-loop recursion."""
    mine = session(size=size)
    replica, w = mine.replica, mine.replica.parameters
    images, labels = mine.inputs.batch(0, 0, 1)
    left = steps

    def evaluate(point):
        nonlocal left
        left -= 1
        w[:] = point
        loss, _, _ = replica.loss(images, labels, 1 / len(images))
        return loss / len(images), replica.gradients.copy()

    here = w.copy()
    loss, gradient = evaluate(here)
    pairs = []
    while left:
        direction = -inverse_hessian(size, pairs) @ gradient
        slope = gradient @ direction
        search = strong_wolfe(loss, slope, 1.0 if pairs else min(1.0, (-slope) ** -0.5), min(20, left))
        length = next(search)
        while True:
            value, change = evaluate(here + length * direction)
            try:
                length = search.send((value, change @ direction))
            except StopIteration as stop:
                length = stop.value
                break
        pairs = [*pairs, (length * direction, change - gradient)][-history:]
        here = here + length * direction
        loss, gradient = value, change
    return here


def inverse_hessian(size, pairs):
    """Return the L-BFGS matrix by equations 7.16 and 7.20 of Nocedal and Wright."""
    one = np.eye(size)
    inverse = one * (pairs[-1][0] @ pairs[-1][1]) / (pairs[-1][1] @ pairs[-1][1]) if pairs else one
    for s, y in pairs:
        rho = 1 / (y @ s)
        v = one - rho * np.outer(y, s)
        inverse = v.T @ inverse @ v + rho * np.outer(s, s)
    return inverse
