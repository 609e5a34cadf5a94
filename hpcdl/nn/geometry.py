"""What a kernel must know to be built: sizes, strides, constants. No batch size, no arrays, hashable.

Images are (H, W, C): height, width, channels, in elements. Pairs are (vertical, horizontal).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]
"""Extent of one image or vector, without the batch."""

Pair = tuple[int, int]
"""(vertical, horizontal)."""

Rounding = Literal["floor", "ceil"]
"""What becomes of a last, incomplete window: left out or kept."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One image's activations, whatever their shape."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class ConvolutionGeometry:
    """A convolution from ``image`` (H, W, C) to ``output`` (P, Q, K) with weights (K, R, S, C / groups)."""

    image: tuple[int, int, int]
    output: tuple[int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    groups: int
    dtype: str
    relu: bool = False
    """Whether what comes out is rectified."""


@dataclass(frozen=True, slots=True)
class LocallyConnectedGeometry:
    """Untied filters from ``image`` (H, W, C) to ``output`` (P, Q, K) with weights (P, Q, K, R, S, C)."""

    image: tuple[int, int, int]
    output: tuple[int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dtype: str
    relu: bool = False
    """Whether what comes out is rectified."""


@dataclass(frozen=True, slots=True)
class LinearGeometry:
    """A product with a matrix (outputs, inputs)."""

    inputs: int
    outputs: int
    dtype: str
    relu: bool = False
    """Whether what comes out is rectified."""


@dataclass(frozen=True, slots=True)
class PoolingGeometry:
    """Pooling from ``image`` (H, W, C) to ``output`` (P, Q, C); the rounding is already in ``output``."""

    image: tuple[int, int, int]
    output: tuple[int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dtype: str


@dataclass(frozen=True, slots=True)
class ResponseGeometry:
    """Local response normalisation over ``size`` neighbouring channels."""

    shape: Shape
    size: int
    alpha: float
    beta: float
    k: float
    dtype: str


@dataclass(frozen=True, slots=True)
class BatchNormGeometry:
    """Batch normalisation over everything but the last axis of ``shape``."""

    shape: Shape
    eps: float
    momentum: float
    dtype: str
    joined: bool = False
    """Whether a shortcut is added to what was normalised."""
    relu: bool = False
    """Whether what comes out, the shortcut included, is rectified."""


@dataclass(frozen=True, slots=True)
class DropoutGeometry:
    """Dropout of a share ``ratio`` of the activations."""

    shape: Shape
    ratio: float
    dtype: str


@dataclass(frozen=True, slots=True)
class ConcatenationGeometry:
    """Blobs of ``shapes``, alike but for their last axis, side by side on it."""

    shapes: tuple[Shape, ...]
    dtype: str


def pair(value: int | Pair) -> Pair:
    """Return ``value`` for both directions, or the two values given."""
    return (value, value) if isinstance(value, int) else value


def windows(image: Pair, kernel: Pair, stride: Pair, padding: Pair, rounding: Rounding, *, layer: str) -> Pair:
    """Count the windows that fit on an image, in both directions, with Caffe's rounding.

    ``floor`` counts complete windows (convolution). ``ceil`` keeps a last, incomplete one (pooling), provided
    that it starts inside the image or its left padding; Caffe applies that condition to padded pooling only,
    but without padding it can fail only where stride > kernel, and then leaves a window without a pixel.

    ValueError, naming ``layer``: a kernel larger than the padded image, a size that is not positive.
    """
    if min(*kernel, *stride) < 1 or min(padding) < 0:
        raise ValueError(f"{layer}: kernel {kernel}, stride {stride}, padding {padding} must be positive")
    if rounding not in {"floor", "ceil"}:
        raise ValueError(f"{layer}: rounding {rounding!r} is neither 'floor' nor 'ceil'")
    padded = (image[0] + 2 * padding[0], image[1] + 2 * padding[1])
    if kernel[0] > padded[0] or kernel[1] > padded[1]:
        raise ValueError(
            f"{layer}: kernel {kernel[0]}x{kernel[1]} is larger than the padded image {padded[0]}x{padded[1]}"
        )
    vertical, horizontal = (_count(image[i], kernel[i], stride[i], padding[i], rounding) for i in range(2))
    return vertical, horizontal


def _count(size: int, kernel: int, stride: int, padding: int, rounding: Rounding) -> int:
    span = size + 2 * padding - kernel
    if rounding == "floor":
        return span // stride + 1
    count = -(-span // stride) + 1
    starts_outside = (count - 1) * stride >= size + padding
    return count - 1 if starts_outside else count


def as_image(shape: Shape, *, layer: str) -> tuple[int, int, int]:
    """Return ``shape`` if it is (H, W, C); ValueError naming ``layer`` otherwise."""
    if len(shape) != 3:
        raise ValueError(f"{layer}: needs an image (height, width, channels), got shape {shape}")
    return shape
