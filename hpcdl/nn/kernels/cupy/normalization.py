"""Batch normalisation by cuDNN, and local response normalisation."""

from __future__ import annotations

from typing import NamedTuple

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import BatchNormGeometry, ResponseGeometry, master
from hpcdl.nn.kernels.cupy.device import Device, EnginePlan, Uid, empty_like, grid_over, grid_over_rows, is_aligned
from hpcdl.nn.kernels.cupy.elementwise import fold, groups_of, rectified_gradient

MAX_GROUPS = 256
"""Most groups of rows; one thread per channel combines their moments."""


class _Saved(NamedTuple):
    x: Array
    y: Array
    mean: Array
    inverse: Array


class BatchNorm:
    """Normalise by the batch or by the running statistics; shortcut and ReLU in the same pass.

    The backward of the ReLU uses the sign of y, which the next layer keeps anyway as its input.
    """

    def __init__(self, device: Device, geometry: BatchNormGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._channels = geometry.shape[-1]
        self._saved: _Saved | None = None

    def forward(
        self,
        x: Array,
        shortcut: Array | None,
        gamma: Array,
        beta: Array,
        mean: Array,
        variance: Array,
        train: bool,
    ) -> Array:
        self._saved = None
        device, dtype, channels = self._device, self._geometry.dtype, self._channels
        exact = master(dtype)
        y, rows = empty_like(device, x, dtype), x.size // channels
        batch_mean, inverse = device.empty((channels,), exact), device.empty((channels,), exact)
        if train and rows:
            self._saved = _Saved(x, y, batch_mean, inverse)
            plan = self._plan("forward", len(x), rows, gamma, beta, mean, variance)
            if plan is not None:
                self._by_cudnn(plan, self._saved, shortcut, gamma, beta, mean, variance)
                return y
            self._moments(x, rows, batch_mean, inverse, mean, variance)
            self._normalise(x, shortcut, batch_mean, inverse, gamma, beta, y, rows)
        elif rows:
            device.launch(
                *("batch_norm", "inverse_deviation", dtype, grid_over(channels)),
                *(variance, inverse, channels, float(self._geometry.eps)),
            )
            self._normalise(x, shortcut, mean, inverse, gamma, beta, y, rows)
        elif train:
            self._saved = _Saved(x, y, batch_mean, inverse)
        return y

    def backward(self, dy: Array, gamma: Array, dgamma: Array, dbeta: Array) -> tuple[Array, Array | None]:
        assert self._saved is not None, "backward requires a training forward"
        (x, y, mean, inverse), self._saved = self._saved, None
        device, dtype, channels = self._device, self._geometry.dtype, self._channels
        rows = dy.size // channels
        if not rows:
            dgamma[...] = 0
            dbeta[...] = 0
            return dy, dy if self._geometry.joined else None
        dz = rectified_gradient(device, dy, y, dtype) if self._geometry.relu else dy
        del y
        dx = empty_like(device, dy, dtype)
        plan = self._plan("backward", len(dy), rows, gamma, dgamma, dbeta)
        if plan is not None:
            arrays = {Uid.Y: dz, Uid.X: x, Uid.GAMMA: gamma, Uid.MEAN: mean, Uid.INVERSE: inverse}
            arrays |= {Uid.SHORTCUT: dx, Uid.DGAMMA: dgamma, Uid.DBETA: dbeta}
            device.execute(plan, arrays)
        else:
            self._sums(dz, x, mean, inverse, dgamma, dbeta, rows)
            device.launch(
                *("batch_norm", "input_gradient", dtype, grid_over_rows(rows, channels, dtype)),
                *(dz, x, mean, inverse, gamma, dgamma, dbeta, dx, rows, channels),
            )
        return dx, dz if self._geometry.joined else None

    def _plan(self, operation: str, batch: int, rows: int, *vectors: Array) -> EnginePlan | None:
        """Return cuDNN's plan; None for unaligned vectors and for one pixel (unbiased variance 0 / 0)."""
        if rows < 2 or not all(is_aligned(self._device.address(vector)) for vector in vectors):
            return None
        return self._device.batch_norm_plan(operation, self._geometry, batch)

    def _by_cudnn(
        self,
        plan: EnginePlan,
        saved: _Saved,
        shortcut: Array | None,
        gamma: Array,
        beta: Array,
        mean: Array,
        variance: Array,
    ) -> None:
        exact = master(self._geometry.dtype)
        next_mean, next_variance = (self._device.empty((self._channels,), exact) for _ in range(2))
        arrays = {Uid.X: saved.x, Uid.Y: saved.y, Uid.GAMMA: gamma, Uid.BETA: beta}
        arrays |= {Uid.MEAN: saved.mean, Uid.INVERSE: saved.inverse}
        arrays |= {Uid.RUNNING_MEAN: mean, Uid.RUNNING_VARIANCE: variance}
        arrays |= {Uid.NEXT_MEAN: next_mean, Uid.NEXT_VARIANCE: next_variance}
        if shortcut is not None:
            arrays[Uid.SHORTCUT] = shortcut
        self._device.execute(plan, arrays)
        mean[...] = next_mean
        variance[...] = next_variance

    def _moments(
        self, x: Array, rows: int, mean: Array, inverse: Array, running_mean: Array, running_variance: Array
    ) -> None:
        g, device, channels = self._geometry, self._device, self._channels
        groups = min(groups_of(rows, channels), MAX_GROUPS)
        means, squares = (device.empty((groups, channels), master(g.dtype)) for _ in range(2))
        device.launch(
            *("batch_norm", "moments_of_groups", g.dtype, grid_over_rows(groups, channels, g.dtype)),
            *(x, means, squares, rows, channels, groups),
        )
        device.launch(
            *("batch_norm", "moments", g.dtype, grid_over(channels), means, squares, mean, inverse),
            *(running_mean, running_variance, rows, channels, groups, float(g.eps), float(g.momentum)),
        )

    def _normalise(
        self,
        x: Array,
        shortcut: Array | None,
        mean: Array,
        inverse: Array,
        gamma: Array,
        beta: Array,
        y: Array,
        rows: int,
    ) -> None:
        dtype, channels = self._geometry.dtype, self._channels
        self._device.launch(
            *("batch_norm", "normalise", dtype, grid_over_rows(rows, channels, dtype)),
            *(x, shortcut, mean, inverse, gamma, beta, y, rows, channels, int(self._geometry.relu)),
        )

    def _sums(
        self, dz: Array, x: Array, mean: Array, inverse: Array, dgamma: Array, dbeta: Array, rows: int
    ) -> None:
        device, dtype, channels = self._device, self._geometry.dtype, self._channels
        groups = groups_of(rows, channels)
        sums, products = (device.empty((groups, channels), master(dtype)) for _ in range(2))
        device.launch(
            *("batch_norm", "gradients_of_groups", dtype, grid_over_rows(groups, channels, dtype)),
            *(dz, x, mean, inverse, sums, products, rows, channels, groups),
        )
        for partial, out in ((sums, dbeta), (products, dgamma)):
            left, count = fold(device, partial, groups, channels, dtype, out)
            while count > 1:
                left, count = fold(device, left, count, channels, dtype, out)


class ResponseNormalization:
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels)."""

    def __init__(self, device: Device, geometry: ResponseGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._channels = geometry.shape[-1]
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        self._saved = ()
        g = self._geometry
        y, scale = empty_like(self._device, x, g.dtype), self._device.empty(x.shape, master(g.dtype))
        rows = x.size // self._channels
        self._device.launch(
            "response",
            "response_forward",
            g.dtype,
            grid_over_rows(rows, self._channels, g.dtype),
            *(x, y, scale, rows, self._channels, g.size, float(g.alpha), float(g.beta), float(g.k)),
        )
        self._saved = (x, y, scale)
        return y

    def backward(self, dy: Array) -> Array:
        (x, y, scale), self._saved = self._saved, ()
        g = self._geometry
        dx = empty_like(self._device, dy, g.dtype)
        rows = dy.size // self._channels
        self._device.launch(
            "response",
            "response_backward",
            g.dtype,
            grid_over_rows(rows, self._channels, g.dtype),
            *(dy, x, y, scale, dx, rows, self._channels, g.size, float(g.alpha), float(g.beta)),
        )
        return dx
