"""The seam between layers and arithmetic: a backend makes arrays and builds kernels."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdl.nn import geometry, kernels, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hpcdl.fabric.comm import Array


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


def backends() -> list[str]:
    """List the names of all backends, usable here or not."""
    return sorted(entry.name for entry in pkgutil.iter_modules(kernels.__path__) if entry.ispkg)
