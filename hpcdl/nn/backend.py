"""The seam between layers and arithmetic: a backend makes arrays and builds kernels."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdl.nn import geometry, kernels, ops
from hpcdl.nn.precision import HALF

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.layer import Bound


@dataclass(frozen=True)
class Backend:
    """An array library and its kernels, each a constructor that takes a geometry and returns an op.

    A backend that improves on another in some kernels only is that one with these fields replaced
    (:func:`dataclasses.replace`).
    """

    name: str
    zeros: Callable[[int, str], Array]
    """(size, dtype) to a vector of zeros, on the device."""
    asarray: Callable[[npt.NDArray[Any]], Array]
    """A host array to an array on the device, the same one if the device is the host."""
    to_host: Callable[[Array], npt.NDArray[Any]]
    """An array on the device to a host array, the same one if the device is the host."""
    convolution: Callable[[geometry.ConvolutionGeometry], ops.Affine]
    linear: Callable[[geometry.LinearGeometry], ops.Affine]
    max_pooling: Callable[[geometry.PoolingGeometry], ops.Elementary]
    average_pooling: Callable[[geometry.PoolingGeometry], ops.Elementary]
    global_average: Callable[[geometry.Blob], ops.Elementary]
    relu: Callable[[geometry.Blob], ops.Elementary]
    response_normalization: Callable[[geometry.ResponseGeometry], ops.Elementary]
    batch_norm: Callable[[geometry.BatchNormGeometry], ops.Normalization]
    dropout: Callable[[geometry.DropoutGeometry], ops.Noise]
    concatenation: Callable[[geometry.ConcatenationGeometry], ops.Concatenation]
    addition: Callable[[geometry.Blob], ops.Addition]
    cross_entropy: Callable[[geometry.Blob], ops.CrossEntropy]
    sigmoid: Callable[[geometry.Blob], ops.Elementary]
    locally_connected: Callable[[geometry.LocallyConnectedGeometry], ops.Affine]
    cast: Callable[[Array, str], Array] | None = field(default=None, kw_only=True)
    """(array, 16-bit precision) from float32 to that precision or back; None without 16-bit kernels."""
    record: Callable[[Bound], Bound] | None = field(default=None, kw_only=True)
    """A layer at work to one that does the same with less effort from its second step on."""

    on_host: bool = field(default=True, kw_only=True)
    """Whether arrays take the memory of the node, not a device's own."""

    prepare: Callable[[str], None] | None = field(default=None, kw_only=True)
    """Compile the kernels for a dtype, or load them if this machine has: to be called before anything is timed."""

    def check_precision(self, dtype: str) -> None:
        """Raise ValueError for a precision of activations that there are no kernels for."""
        if dtype in HALF and self.cast is None:
            raise ValueError(f"dtype {dtype!r} needs a GPU backend; {self.name!r} has 'float32' and 'float64'")
        if dtype not in {"float32", "float64", *HALF}:
            raise ValueError(f"dtype {dtype!r} is neither of float32, float64, {', '.join(HALF)}")


def backend(name: str, **settings: Any) -> Backend:
    """Return the backend of that name; ValueError if it is unknown or a library it needs is missing.

    ``hpcdl/nn/kernels/NAME/__init__.py`` offers the function NAME, whose keywords are the backend's settings
    and which imports what it needs when it is called.
    """
    if name not in backends():
        raise ValueError(f"backend {name!r} is unknown; there are: {', '.join(backends())}")
    build = getattr(importlib.import_module(f"{kernels.__name__}.{name}"), name)
    try:
        chosen: Backend = build(**settings)
    except ImportError as error:
        raise ValueError(f"backend {name!r} cannot be used here: {error}") from error
    return chosen


@cache
def backends() -> tuple[str, ...]:
    """List the names of all backends, usable here or not."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(kernels.__path__) if entry.ispkg))
