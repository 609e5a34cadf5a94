"""Gradient noise scale (McCandlish et al. 2018), and accuracy and sharpness on training images."""

import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import Split
from hpcdl.fabric.comm import Array, Comm
from hpcdl.nn.backend import Backend
from hpcdl.nn.layer import Layer
from hpcdl.nn.replica import Replica

QUARTERS: Final = 4
"""Parts of the training with a number each: noise grows while the loss falls."""


@dataclass(eq=False)
class NoiseScale:
    """Estimates of the gradient noise scale, summed over the steps of each quarter of the training.

    The squared norms of the gradient of a rank's own images, before the sum, and of that of the whole batch, after
    it, give unbiased estimates of the squared true gradient and of the trace of the covariance of gradients of
    images (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).
    """

    gradients: Array
    global_batch: int
    steps: int

    def __post_init__(self) -> None:
        self._own = self._all = 0.0
        self._sums = np.zeros((QUARTERS, 2))
        """Squared gradient, and trace of the covariance."""

    def watched(
        self, reduce: Callable[[slice], Coroutine[Any, Any, None]]
    ) -> Callable[[slice], Coroutine[Any, Any, None]]:
        """Return ``reduce``, which also takes the norms of its part of the gradient, before and after."""

        async def reduced(span: slice) -> None:
            part = self.gradients[span]
            self._own += float(part @ part)
            await reduce(span)
            self._all += float(part @ part)

        return reduced

    def add(self, step: int, images: int) -> None:
        """End a step in which this rank had ``images`` of the batch; its gradient is divided by all of them."""
        whole, own = self.global_batch, images
        if 0 < own < whole:
            alone = self._own * (whole / own) ** 2
            square = (whole * self._all - own * alone) / (whole - own)
            trace = (alone - self._all) / (1 / own - 1 / whole)
            self._sums[QUARTERS * step // self.steps] += (square, trace)
        self._own = self._all = 0.0

    async def fields(self, comm: Comm) -> dict[str, float | None]:
        """Return the noise scale in images, trace by squared gradient, of each quarter; all ranks call, once.

        None where no step was taken, or where the estimate of the squared gradient is not positive.
        """
        sums = self._sums.copy()
        await comm.native("allreduce", sums.reshape(-1))
        return {
            f"noise_scale_q{quarter}": float(trace / square) if square > 0 and np.isfinite(trace) else None
            for quarter, (square, trace) in enumerate(sums, 1)
        }


Vector = NDArray[np.float64]

STEP: Final = 1e-10
"""Length of a step of the central differences, by that of the parameters.

Longer ones cross kinks of ReLU and pooling: with 1e-8 LeNet's eigenvalue was once 240 times too large.
"""
TOLERANCE: Final = 1e-5
"""Change of both eigenvalues in the last iteration, by their distance."""
MAX_ITERATIONS: Final = 100
ACCURACY_IMAGES: Final = 2048
"""Training images whose accuracy is compared with that of the test set, at least, if there are so many."""


def extreme_eigenvalues(gradient: Callable[[Vector], Vector], x: Vector) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue of the derivative of ``gradient``, a Hessian, at ``x`` (n,).

    Lanczos iterations on H v = (g(x + h v) - g(x - h v)) / 2h, orthogonalised again. They approach both ends from
    inside. Memory: a vector (n,) an iteration.
    """
    step = STEP * max(1.0, float(np.linalg.norm(x)))
    w = np.random.default_rng(0).standard_normal(x.size)
    basis, diagonal, ends = [w / np.linalg.norm(w)], list[float](), np.zeros(2)
    beside = list[float]()
    for _ in range(min(MAX_ITERATIONS, x.size)):
        v = basis[-1]
        w = (gradient(x + step * v) - gradient(x - step * v)) / (2 * step)
        diagonal.append(float(v @ w))
        if not np.isfinite(diagonal[-1]):
            return math.nan, math.nan
        values = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))  # it reads the lower triangle
        before, ends = ends, values[[0, -1]]
        for _ in range(2):
            w -= np.array(basis).T @ (np.array(basis) @ w)
        beside.append(float(np.linalg.norm(w)))
        change = float(np.abs(ends - before).max())
        if (len(values) > 1 and change <= TOLERANCE * (ends[1] - ends[0])) or beside[-1] <= STEP * abs(ends).max():
            break
        basis.append(w / beside[-1])
    return float(ends[0]), float(ends[1])


def training_gap(
    layers: Sequence[Layer],
    kernels: Backend,
    split: Split,
    parameters: Array,
    state: Array,
    images: int,
    batch: int,
) -> dict[str, float | None]:
    """Return accuracy, extreme eigenvalues and the gradient's norm of a network on random images of ``split``.

    The accuracy, whose standard error is to be less than a percentage point, is that of :data:`ACCURACY_IMAGES`.
    Samples are equal in all trainings, and not augmented. They are computed in float64, in batches of at most
    ``batch`` images, of which batch normalisation has the statistics. None for parameters that are not finite.
    """
    if not np.isfinite(parameters).all():
        return dict.fromkeys(("train_accuracy", "sharpness", "smallest_eigenvalue", "final_gradient_norm"))

    def batches_of(number: int) -> Iterator[tuple[Array, NDArray[np.int64]]]:
        sample = np.sort(np.random.default_rng(0).choice(len(split), number, replace=False))
        return (split.batch(part, "float64") for part in np.array_split(sample, -(-number // batch)))

    batches = [*batches_of(images)]
    replica = Replica(layers, batches[0][0].shape[1:], backend=kernels, dtype="float64")
    replica.parameters[:] = parameters
    replica.state[:] = state
    tested = max(images, min(ACCURACY_IMAGES, len(split)))
    correct = sum(replica.loss(replica.predict(x), labels, 1.0)[1] for x, labels in batches_of(tested))

    def gradient(at: Vector) -> Vector:
        replica.parameters[:] = at
        total = np.zeros_like(at)
        for x, labels in batches:
            replica.reseed(0)
            y: Any = x
            for stage in replica.stages:
                y = stage.forward(y)
            _, _, y = replica.loss(y, labels, 1 / images)
            for head in replica.heads:
                head.aim(labels, 1 / images)
            for stage in reversed(replica.stages):
                y = stage.backward(y)
            total += replica.gradients
        return total

    ends = extreme_eigenvalues(gradient, replica.parameters.copy())
    smallest, largest = (end if np.isfinite(end) else None for end in ends)
    return {
        "train_accuracy": correct / tested,
        "sharpness": largest,
        "smallest_eigenvalue": smallest,
        "final_gradient_norm": float(np.linalg.norm(gradient(parameters.astype("float64")))),
    }
