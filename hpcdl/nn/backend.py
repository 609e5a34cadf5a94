"""Backend: an array library with its kernels, selected by name."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hpcdl.fabric.comm import Array, Device
from hpcdl.nn import geometry, ops
from hpcdl.nn.geometry import HALF
from hpcdl.nn.ops import Bound


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
    convolution: Callable[[geometry.WindowGeometry], ops.Affine]
    linear: Callable[[geometry.LinearGeometry], ops.Affine]
    max_pooling: Callable[[geometry.WindowGeometry], ops.Elementary]
    average_pooling: Callable[[geometry.WindowGeometry], ops.Elementary]
    global_average: Callable[[geometry.Blob], ops.Elementary]
    relu: Callable[[geometry.Blob], ops.Elementary]
    response_normalization: Callable[[geometry.ResponseGeometry], ops.Elementary]
    batch_norm: Callable[[geometry.BatchNormGeometry], ops.BatchNormalization]
    dropout: Callable[[geometry.DropoutGeometry], ops.Noise]
    concatenation: Callable[[geometry.ConcatenationGeometry], ops.Concatenation]
    addition: Callable[[geometry.Blob], ops.Addition]
    cross_entropy: Callable[[geometry.Blob], ops.CrossEntropy]
    sigmoid: Callable[[geometry.Blob], ops.Elementary]
    locally_connected: Callable[[geometry.WindowGeometry], ops.Affine]
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
