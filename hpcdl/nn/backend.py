"""Backend: an array library with its kernels (ops), one op per layer, and the protocols of ops and bound layers.

An op owns the arrays that it returns. They are valid until its next forward (gradients: its next backward).
Forward stores what backward needs; backward releases it, so each forward allows one backward. The caller must not
change an input until backward. An op writes to no argument except parameter gradients, which it overwrites. The
batch size may change between calls and may be 0.

All arrays are contiguous and of the geometry's dtype; activations are (N, H, W, C) or (N, F).
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import threadpoolctl

from hpcdl.fabric.comm import Array, Device
from hpcdl.nn import geometry
from hpcdl.nn.geometry import HALF


class Bound(Protocol):
    """A layer bound to kernels, buffers and its views of the replica's flat vectors."""

    def forward(self, x: Array, train: bool) -> Array:
        """Return the outputs (N, ...), valid until the next call."""

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """Overwrite the parameters' gradients; return the last input's gradient, or None unless ``needs_dx``."""


class Elementary(Protocol):
    """Op without parameters: ReLU, sigmoid, pooling, local response normalisation."""

    def forward(self, x: Array) -> Array:
        """Return the outputs (N, ...)."""

    def backward(self, dy: Array) -> Array:
        """Return the gradient with respect to the last input."""


class Weights(NamedTuple):
    """Parameters of an affine op, and where its backward writes their gradients; without a bias two are None."""

    weight: Array
    bias: Array | None
    dweight: Array
    dbias: Array | None


class Affine(Protocol):
    """Op with weights: convolution (K, R, S, C / groups), matrix product (out, in), or locally connected layer.

    A locally connected layer has weights (P, Q, K, R, S, C) and bias (P, Q, K). The geometry can include a ReLU.
    """

    def forward(self, x: Array, weights: Weights) -> Array:
        """Return the outputs (N, ...)."""

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        """Overwrite both gradients in ``weights``; return the input gradient, or None unless ``needs_dx``."""


class NormVectors(NamedTuple):
    """Vectors (C,) of batch normalisation: parameters, running statistics, gradients of the parameters."""

    gamma: Array
    beta: Array
    mean: Array
    variance: Array
    dgamma: Array
    dbeta: Array


class BatchNormalization(Protocol):
    """Batch normalisation. The geometry can include a shortcut and a ReLU."""

    def forward(self, x: Array, shortcut: Array | None, vectors: NormVectors, train: bool) -> Array:
        """Normalise by the running statistics; if ``train``, normalise by the batch and update them."""

    def backward(self, dy: Array, vectors: NormVectors) -> tuple[Array, Array | None]:
        """Overwrite ``dgamma`` and ``dbeta``; return the gradients of the last training input and shortcut."""


class Noise(Elementary, Protocol):
    """Dropout: zeroes random activations and scales up the others."""

    def reseed(self, key: Sequence[int]) -> None:
        """Restart the random numbers from a key of non-negative integers."""

    def continued(self) -> Self:
        """Return an op with masks of its own that draws this op's next random numbers."""


class Concatenation(Protocol):
    """Concatenate blobs along the last axis."""

    def forward(self, pieces: Sequence[Array]) -> Array: ...

    def backward(self, dy: Array) -> list[Array]:
        """Return the gradient of each blob, contiguous."""


class Addition(Protocol):
    """Sum arrays."""

    def forward(self, terms: Sequence[Array]) -> Array:
        """Return the sum of two or more arrays of one shape."""


class CrossEntropy(Protocol):
    """Softmax and cross-entropy."""

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the summed loss, the number of correct images, and ``scale`` x the gradient of that sum."""


@dataclass(frozen=True)
class Backend:
    """An array library and its kernels. Each kernel field builds an op from a geometry.

    A backend that differs in a few kernels replaces those fields (:func:`dataclasses.replace`).
    """

    name: str
    zeros: Callable[[int, str], Array]
    """Return a vector of zeros on the device, given (size, dtype)."""
    asarray: Callable[[Array], Array]
    """Copy a host array to the device; without a separate device, return the array itself."""
    to_host: Callable[[Array], Array]
    """Copy a device array to the host; without a separate device, return the array itself."""
    convolution: Callable[[geometry.WindowGeometry], Affine]
    linear: Callable[[geometry.LinearGeometry], Affine]
    max_pooling: Callable[[geometry.WindowGeometry], Elementary]
    average_pooling: Callable[[geometry.WindowGeometry], Elementary]
    global_average: Callable[[geometry.Blob], Elementary]
    relu: Callable[[geometry.Blob], Elementary]
    response_normalization: Callable[[geometry.ResponseGeometry], Elementary]
    batch_norm: Callable[[geometry.BatchNormGeometry], BatchNormalization]
    dropout: Callable[[geometry.DropoutGeometry], Noise]
    concatenation: Callable[[geometry.ConcatenationGeometry], Concatenation]
    addition: Callable[[geometry.Blob], Addition]
    cross_entropy: Callable[[geometry.Blob], CrossEntropy]
    sigmoid: Callable[[geometry.Blob], Elementary]
    locally_connected: Callable[[geometry.WindowGeometry], Affine]
    cast: Callable[[Array, str], Array] | None = field(default=None, kw_only=True)
    """Convert (array, 16-bit precision) from float32 to that precision or back; None without 16-bit kernels."""
    record: Callable[[Bound], Bound] | None = field(default=None, kw_only=True)
    """Return a bound layer that records its kernel launches in the first step and replays them afterwards."""
    divides_products: bool = field(default=False, kw_only=True)
    """The kernels divide products among threads; BLAS then has one thread."""
    device: Device | None = field(default=None, kw_only=True)
    """Device whose memory holds the arrays; None: the host."""
    prepare: Callable[[str], None] | None = field(default=None, kw_only=True)
    """Compile or load the kernels of a dtype. Call it before anything is timed."""
    announcement: Callable[[str], str] | None = field(default=None, kw_only=True)
    """Return the line for the user while :attr:`prepare` compiles; None if it never does."""
    bind: Callable[..., Bound] | None = field(default=None, kw_only=True)
    """Bind (layer, input shape, site) to sizes alone, in place of the kernels; None: arrays have values."""

    @property
    def sizes_only(self) -> bool:
        """True if nothing is computed, and arrays have no values that matter."""
        return self.bind is not None

    @property
    def on_host(self) -> bool:
        """True if arrays are in host memory."""
        return self.device is None

    def check_precision(self, dtype: str) -> None:
        """Raise ValueError if this backend has no kernels for activations of ``dtype``."""
        if dtype in HALF and self.cast is None:
            raise ValueError(f"dtype {dtype!r} needs a GPU backend; {self.name!r} has 'float32' and 'float64'")
        if dtype not in {"float32", "float64", *HALF}:
            raise ValueError(f"dtype {dtype!r} is unknown; available: float32, float64, {', '.join(HALF)}")


def backend(name: str, **settings: object) -> Backend:
    """Import and return the backend ``name``; ValueError if it is unknown or a library is missing.

    The function NAME in ``hpcdl/nn/kernels/NAME/__init__.py`` builds it from keyword settings.
    """
    if name not in backends():
        raise ValueError(f"backend {name!r} is unknown; available: {', '.join(backends())}")
    build = getattr(importlib.import_module(f"{__package__}.kernels.{name}"), name)
    try:
        chosen: Backend = build(**settings)
    except ImportError as error:
        raise ValueError(f"backend {name!r} cannot be used here: {error}") from error
    return chosen


@cache
def backends() -> tuple[str, ...]:
    """Return the names of all backends, including those whose libraries are missing."""
    folder = str(Path(__file__).with_name("kernels"))
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules([folder]) if entry.ispkg))


T = TypeVar("T")

MIN_ELEMENTS_PER_THREAD: Final = 1 << 20
"""Waking a thread takes about as long as adding so many elements, while compiled kernels' own threads spin."""
_LIMIT: Final = [1]
_POOL: Final = ThreadPoolExecutor(1 << 10, "hpcdl-kernels")  # starts threads when they are needed


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context manager: kernels of this process may use ``count`` >= 1 threads in the body."""
    before, _LIMIT[0] = _LIMIT[0], count
    try:
        yield
    finally:
        _LIMIT[0] = before


@contextmanager
def computing(kernels: "Backend | None", count: int) -> Iterator[None]:
    """Context manager: the body computes a case on ``count`` threads, and numpy does not warn of overflows.

    A training that diverges overflows; the record shows it, and numpy would warn on each rank at each step.
    """
    # threads of BLAS would wait actively on the cores of kernels' threads
    of_blas = 1 if kernels is not None and kernels.divides_products else count
    with threadpoolctl.threadpool_limits(of_blas, "blas"), threads(count), np.errstate(all="ignore"):
        yield


def limit() -> int:
    """Return the number of threads that this process's kernels may use."""
    return _LIMIT[0]


def parallel_ranges(count: int, work: Callable[[int, int], T], *, elements: int) -> list[T]:
    """Call work(begin, end) for contiguous parts of range(count), one per thread; return the results in order.

    ``elements`` is the total number of elements that the work reads; small work uses fewer threads. ``work``
    should release the GIL. The calling thread runs the first part.
    """
    parts = max(min(_LIMIT[0], count, elements // MIN_ELEMENTS_PER_THREAD), 1)
    if parts == 1:
        return [work(0, count)]
    bounds = [i * count // parts for i in range(parts + 1)]
    others = [_POOL.submit(work, bounds[i], bounds[i + 1]) for i in range(1, parts)]
    return [work(0, bounds[1]), *(other.result() for other in others)]
