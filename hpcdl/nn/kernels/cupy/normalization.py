"""Batch normalisation by cuDNN, and local response normalisation."""

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import NormVectors
from hpcdl.nn.geometry import BatchNormGeometry, ResponseGeometry
from hpcdl.nn.kernels.cupy.device import Device, EnginePlan, Op, Uid, is_aligned
from hpcdl.nn.kernels.cupy.elementwise import fold, groups_of, rectified_gradient

MAX_GROUPS = 256
"""Most groups of rows; one thread per channel combines their moments."""


class BatchNorm(Op):
    """Normalise by the batch or by the running statistics; shortcut and ReLU in the same pass.

    The backward of the ReLU uses the sign of y, which the next layer keeps anyway as its input.
    """

    source = "batch_norm"

    def __init__(self, device: Device, geometry: BatchNormGeometry) -> None:
        super().__init__(device, geometry)
        self._channels = geometry.shape[-1]

    def forward(self, x: Array, shortcut: Array | None, vectors: NormVectors, train: bool) -> Array:
        self._saved = ()
        rows, channels = x.size // self._channels, self._channels
        y, batch_mean, inverse = self._empty(x.shape), self._exact(channels), self._exact(channels)
        if train:
            self._saved = (x, y, batch_mean, inverse)
        if not rows:
            return y
        if train:
            gamma, beta, mean, variance, *_ = vectors
            plan = self._plan("forward", len(x), rows, gamma, beta, mean, variance)
            if plan is not None:
                self._by_cudnn(plan, shortcut, vectors)
                return y
            self._moments(x, rows, batch_mean, inverse, mean, variance)
        else:
            self._launch(
                "inverse_deviation", channels, vectors.variance, inverse, channels, float(self._geometry.eps)
            )
        used = batch_mean if train else vectors.mean
        arrays = (x, shortcut, used, inverse, vectors.gamma, vectors.beta, y)
        self._launch(
            "normalise", self._over_rows(rows, channels), *arrays, rows, channels, int(self._geometry.relu)
        )
        return y

    def backward(self, dy: Array, vectors: NormVectors) -> tuple[Array, Array | None]:
        (x, y, mean, inverse), self._saved = self._saved, ()
        rows, channels = dy.size // self._channels, self._channels
        gamma, *_, dgamma, dbeta = vectors
        if not rows:
            dgamma[...] = 0
            dbeta[...] = 0
            return dy, dy if self._geometry.joined else None
        dz = rectified_gradient(self._device, dy, y, self._dtype) if self._geometry.relu else dy
        del y
        dx = self._empty(dy.shape)
        plan = self._plan("backward", len(dy), rows, gamma, dgamma, dbeta)
        if plan is not None:
            arrays = {Uid.Y: dz, Uid.X: x, Uid.GAMMA: gamma, Uid.MEAN: mean, Uid.INVERSE: inverse}
            arrays |= {Uid.SHORTCUT: dx, Uid.DGAMMA: dgamma, Uid.DBETA: dbeta}
            self._device.execute(plan, arrays)
        else:
            self._sums((dz, x, mean, inverse), dgamma, dbeta, rows)
            gradients = (dz, x, mean, inverse, gamma, dgamma, dbeta, dx)
            self._launch("input_gradient", self._over_rows(rows, channels), *gradients, rows, channels)
        return dx, dz if self._geometry.joined else None

    def _plan(self, operation: str, batch: int, rows: int, *vectors: Array) -> EnginePlan | None:
        """Return cuDNN's plan; None for unaligned vectors and for one pixel (unbiased variance 0 / 0)."""
        if rows < 2 or not all(is_aligned(self._device.address(vector)) for vector in vectors):
            return None
        return self._device.batch_norm_plan(operation, self._geometry, batch)

    def _by_cudnn(self, plan: EnginePlan, shortcut: Array | None, vectors: NormVectors) -> None:
        x, y, batch_mean, inverse = self._saved
        next_mean, next_variance = (self._exact(self._channels) for _ in range(2))
        arrays = {Uid.X: x, Uid.Y: y, Uid.GAMMA: vectors.gamma, Uid.BETA: vectors.beta}
        arrays |= {Uid.MEAN: batch_mean, Uid.INVERSE: inverse}
        arrays |= {Uid.RUNNING_MEAN: vectors.mean, Uid.RUNNING_VARIANCE: vectors.variance}
        arrays |= {Uid.NEXT_MEAN: next_mean, Uid.NEXT_VARIANCE: next_variance}
        if shortcut is not None:
            arrays[Uid.SHORTCUT] = shortcut
        self._device.execute(plan, arrays)
        vectors.mean[...] = next_mean
        vectors.variance[...] = next_variance

    def _moments(
        self, x: Array, rows: int, mean: Array, inverse: Array, running_mean: Array, running_variance: Array
    ) -> None:
        g, channels = self._geometry, self._channels
        groups = min(groups_of(rows, channels), MAX_GROUPS)
        means, squares = (self._exact(groups, channels) for _ in range(2))
        grid = self._over_rows(groups, channels)
        self._launch("moments_of_groups", grid, x, means, squares, rows, channels, groups)
        arrays = (means, squares, mean, inverse, running_mean, running_variance)
        self._launch("moments", channels, *arrays, rows, channels, groups, float(g.eps), float(g.momentum))

    def _sums(self, arrays: tuple[Array, ...], dgamma: Array, dbeta: Array, rows: int) -> None:
        """Set the gradients of gamma and beta; ``arrays``: dz, x, mean, inverse."""
        channels, groups = self._channels, groups_of(rows, self._channels)
        sums, products = (self._exact(groups, channels) for _ in range(2))
        grid = self._over_rows(groups, channels)
        self._launch("gradients_of_groups", grid, *arrays, sums, products, rows, channels, groups)
        for partial, out in ((sums, dbeta), (products, dgamma)):
            fold(self._device, partial, groups, channels, self._dtype, out)


class ResponseNormalization(Op):
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels)."""

    source = "response"

    def __init__(self, device: Device, geometry: ResponseGeometry) -> None:
        super().__init__(device, geometry)
        self._channels = geometry.shape[-1]

    def forward(self, x: Array) -> Array:
        self._saved = ()
        g, rows, channels = self._geometry, x.size // self._channels, self._channels
        y, scale = self._empty(x.shape), self._exact(*x.shape)
        sizes = (rows, channels, g.size, float(g.alpha), float(g.beta), float(g.k))
        self._launch("response_forward", self._over_rows(rows, channels), x, y, scale, *sizes)
        self._saved = (x, y, scale)
        return y

    def backward(self, dy: Array) -> Array:
        (x, y, scale), self._saved = self._saved, ()
        g, rows, channels = self._geometry, dy.size // self._channels, self._channels
        dx = self._empty(dy.shape)
        sizes = (rows, channels, g.size, float(g.alpha), float(g.beta))
        self._launch("response_backward", self._over_rows(rows, channels), dy, x, y, scale, dx, *sizes)
        return dx
