"""The step that Adam and AdamW share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hpcdl.optim.parts.protocol import Optimizer, state_vector

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class Moments(Optimizer, Protocol):
    """An optimizer with Adam's two moments."""

    beta1: float
    beta2: float
    epsilon: float


def adam_step(rule: Moments, parameters: Array, gradients: Array, learning_rate: float, decay: float) -> None:
    """Make the step of Kingma & Ba 2015, algorithm 1; ``decay`` is an L2 penalty, part of the gradient.

    ``parameters``, ``gradients``: (n,). Raises ValueError as :meth:`Optimizer.update`.
    """
    t = rule.steps + 1
    rate = learning_rate / (1 - rule.beta1**t)
    square_correction = 1 / math.sqrt(1 - rule.beta2**t)
    mean = state_vector(rule.state, "mean", parameters)
    mean_square = state_vector(rule.state, "mean_square", parameters)
    for block, special in rule.multipliers.blocks(parameters, gradients, mean, mean_square, scratch=2):
        w, plain, m, s, decayed, step = block
        g = special.decayed(plain, w, decay, decayed)
        np.multiply(g, 1 - rule.beta1, out=step)
        m *= rule.beta1
        m += step
        np.multiply(g, g, out=step)
        step *= 1 - rule.beta2
        s *= rule.beta2
        s += step
        np.sqrt(s, out=step)
        step *= square_correction
        step += rule.epsilon
        np.divide(m, step, out=step)
        step *= rate
        special.scale(step)
        w -= step
