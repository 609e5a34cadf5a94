"""Adaptive rates: for each scalar Adagrad (DistBelief's), RMSProp, Adam and AdamW; for each tensor LARS, LAMB."""

import math
from collections.abc import Generator
from contextlib import suppress
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.protocol import Rule, fraction, positive, squares, state_vector


class _BySquares(Rule):
    """Base: each scalar's gradient is divided by the root of its accumulated squares."""

    squares: str
    epsilon: float

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        squares = state_vector(self.state, self.squares, parameters)
        for block, special in self.multipliers.blocks(parameters, gradients, squares, scratch=2):
            w, plain, s, decayed, step = block
            g = special.decayed(plain, w, self.weight_decay, decayed)
            np.multiply(g, g, out=step)
            self.accumulate(s, step)
            np.sqrt(s, out=step)
            self.bound(step)
            np.divide(g, step, out=step)
            step *= rate
            special.scale(step)
            w -= step

    def accumulate(self, squares: Array, new: Array) -> None:
        """Add the ``new`` squares, which may change, to ``squares``."""
        raise NotImplementedError

    def bound(self, root: Array) -> None:
        """Keep ``root`` from 0 by ``epsilon``, in place."""
        raise NotImplementedError


class Adagrad(_BySquares):
    """s += g^2;  w -= rate * g / max(sqrt(s), epsilon), where g is the gradient plus weight_decay * w.

    Source: Duchi et al. 2011; DistBelief (Dean et al. 2012, section 4.1). ``epsilon`` is a lower limit, not a
    summand, so larger sums give the paper's rate exactly. DistBelief's ``rate`` is about ten times a fixed one.
    State: ``sum_of_squares``.
    """

    squares = "sum_of_squares"

    def __init__(self, *, epsilon: float = 1e-10, weight_decay: float = 0.0) -> None:
        super().__init__(weight_decay)
        self.epsilon = positive("epsilon", epsilon)

    def accumulate(self, squares: Array, new: Array) -> None:
        squares += new

    def bound(self, root: Array) -> None:
        np.maximum(root, self.epsilon, out=root)


class RMSProp(_BySquares):
    """s = smoothing * s + (1 - smoothing) * g^2;  w -= rate * g / (sqrt(s) + epsilon).

    g is the gradient plus weight_decay * w. Source: Tieleman & Hinton 2012 (Coursera, lecture 6.5), in the form
    and with the defaults of PyTorch's ``RMSprop`` (smoothing is its ``alpha``; Hinton's slide has 0.9). State:
    ``mean_square``.
    """

    squares = "mean_square"

    def __init__(self, *, smoothing: float = 0.99, epsilon: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__(weight_decay)
        self.smoothing = fraction("smoothing", smoothing)
        self.epsilon = positive("epsilon", epsilon)

    def accumulate(self, squares: Array, new: Array) -> None:
        new *= 1 - self.smoothing
        squares *= self.smoothing
        squares += new

    def bound(self, root: Array) -> None:
        root += self.epsilon


class Adam(Rule):
    """m = beta1 m + (1 - beta1) g;  s = beta2 s + (1 - beta2) g^2;  w -= rate * m' / (sqrt(s') + epsilon).

    m' = m / (1 - beta1^t) and s' = s / (1 - beta2^t) at the t-th update. Source: Kingma & Ba 2015, algorithm 1, as
    in PyTorch's ``Adam``. Weight decay is the L2 penalty, part of g, unlike AdamW's decoupled decay.

    State: ``mean`` (m) and ``mean_square`` (s). t is ``steps`` + 1, so a checkpoint must include ``steps``.
    ValueError unless the betas are in [0, 1), ``epsilon`` > 0 and ``weight_decay`` >= 0.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(weight_decay)
        self.beta1 = fraction("beta1", beta1)
        self.beta2 = fraction("beta2", beta2)
        self.epsilon = positive("epsilon", epsilon)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        self.adam_step(parameters, gradients, rate, self.weight_decay)

    def adam_step(self, parameters: Array, gradients: Array, rate: float, decay: float) -> None:
        """Make the step of Kingma & Ba 2015, algorithm 1; ``decay`` is an L2 penalty, part of the gradient."""
        t = self.steps + 1
        rate /= 1 - self.beta1**t
        square_correction = 1 / math.sqrt(1 - self.beta2**t)
        mean = state_vector(self.state, "mean", parameters)
        mean_square = state_vector(self.state, "mean_square", parameters)
        for block, special in self.multipliers.blocks(parameters, gradients, mean, mean_square, scratch=2):
            w, plain, m, s, decayed, step = block
            g = special.decayed(plain, w, decay, decayed)
            np.multiply(g, 1 - self.beta1, out=step)
            m *= self.beta1
            m += step
            np.multiply(g, g, out=step)
            step *= 1 - self.beta2
            s *= self.beta2
            s += step
            np.sqrt(s, out=step)
            step *= square_correction
            step += self.epsilon
            np.divide(m, step, out=step)
            step *= rate
            special.scale(step)
            w -= step


class AdamW(Adam):
    """w -= rate * weight_decay * w, then the step of Adam without decay.

    Source: Loshchilov & Hutter 2019 (arXiv 1711.05101, algorithm 2), as in PyTorch's ``AdamW``.

    State: ``mean`` and ``mean_square``, and ``steps``, as of Adam.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        for block, special in self.multipliers.blocks(parameters, scratch=1):
            w, step = block
            np.multiply(w, rate * self.weight_decay, out=step)
            special.without_decay(step)
            special.scale(step)
            w -= step
        self.adam_step(parameters, gradients, rate, 0.0)


class ByTensor(Rule):
    """Base of rules that need two norms of each tensor."""

    whole_tensors = True

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        self.multipliers.check_whole(parameters)
        update = self.phases(parameters, gradients, rate)
        with suppress(StopIteration):
            update.send(next(update))

    def phases(self, parameters: Array, gradients: Array, rate: float) -> Generator[Array, Array, None]:
        """Yield squared norms of the tensors or their parts, (tensors, 2); update by those of whole tensors."""
        raise NotImplementedError


class LARS(ByTensor):
    """v = momentum * v - rate * local * (g + weight_decay * w);  w += v, for each tensor.

    local = trust * |w| / (|g| + weight_decay * |w|), and 1 where a norm is 0. Biases and batch normalisation have
    no decay and local = 1. Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888, algorithm 1).

    State: ``velocity``. Tensors must be whole: a vector that ends inside of one has another norm.
    """

    def __init__(self, *, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001) -> None:
        super().__init__(weight_decay)
        self.momentum = fraction("momentum", momentum)
        self.trust = positive("trust", trust)

    def phases(self, parameters: Array, gradients: Array, rate: float) -> Generator[Array, Array, None]:
        velocity = state_vector(self.state, "velocity", parameters)
        velocity *= self.momentum
        tensors = self.multipliers.tensors(parameters, gradients)
        norms = np.sqrt((yield squares((parameters[span], gradients[span]) for span, _, _ in tensors)))
        for (span, adapted, multiple), (long, steep) in zip(tensors, norms.tolist(), strict=False):
            w, g = parameters[span], gradients[span]
            local, decay = rate * multiple, self.weight_decay if adapted else 0.0
            if adapted and long > 0 and steep > 0:
                local *= self.trust * long / (steep + decay * long)
            velocity[span] -= local * (g + decay * w) if decay else local * g
        parameters += velocity


class LAMB(ByTensor, Adam):
    """u = m' / (sqrt(s') + epsilon) + weight_decay * w;  w -= rate * |w| / |u| * u, for each tensor.

    m' and s' are those of :class:`Adam`; the ratio is 1 where a norm is 0. Biases and batch normalisation have
    no decay and the ratio 1. Source: You et al. 2020 (arXiv 1904.00962, algorithm 2).

    State: ``mean`` and ``mean_square``. Tensors must be whole, as for :class:`LARS`.
    """

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)

    def phases(self, parameters: Array, gradients: Array, rate: float) -> Generator[Array, Array, None]:
        t = self.steps + 1
        mean = state_vector(self.state, "mean", parameters)
        square = state_vector(self.state, "mean_square", parameters)
        tensors, steps = self.multipliers.tensors(parameters, gradients), list[Array]()
        for span, adapted, _ in tensors:
            w, g, m, s = (vector[span] for vector in (parameters, gradients, mean, square))
            m *= self.beta1
            m += (1 - self.beta1) * g
            s *= self.beta2
            s += (1 - self.beta2) * g * g
            u = m / (1 - self.beta1**t)
            u /= np.sqrt(s / (1 - self.beta2**t)) + self.epsilon
            if adapted:
                u += self.weight_decay * w
            steps.append(u)
        pairs = ((parameters[span], u) for (span, _, _), u in zip(tensors, steps, strict=True))
        norms = np.sqrt((yield squares(pairs))).tolist()
        for (span, adapted, multiple), u, (long, step) in zip(tensors, steps, norms, strict=False):
            ratio = long / step if adapted and long > 0 and step > 0 else 1.0
            parameters[span] -= rate * multiple * ratio * u


OFFERS: Final = {"adagrad": Adagrad, "rmsprop": RMSProp, "adam": Adam, "adamw": AdamW, "lars": LARS, "lamb": LAMB}
