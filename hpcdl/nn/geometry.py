"""Geometries: all constants that a kernel is built from (sizes, strides, dtype). Hashable, without batch size.

Images are (H, W, C): height, width, channels. Pairs are (vertical, horizontal). In bfloat16 and float16 networks,
activations and their gradients have 16 bits, and products are summed in 32 bits. Parameters, their gradients,
running statistics and optimizer state stay float32 (Micikevicius et al. 2018, "master weights").
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Shape = tuple[int, ...]
"""Shape of one image or vector, without the batch axis."""
Pair = tuple[int, int]
"""(vertical, horizontal)."""
Image = tuple[int, int, int]
"""(height, width, channels)."""
Rounding = Literal["floor", "ceil"]
"""Treatment of an incomplete last window: ``floor`` omits it, ``ceil`` includes it."""
HALF: Final = ("bfloat16", "float16")
"""16-bit precisions of activations; their parameters stay float32."""


def master(dtype: str) -> str:
    """Return the precision of parameters, gradients and images for activations of ``dtype``."""
    return "float32" if dtype in HALF else dtype


def storage_dtype(dtype: str) -> str:
    """Return the dtype of arrays that store ``dtype``; numpy has no bfloat16, so uint16 stores it."""
    return "uint16" if dtype == "bfloat16" else dtype


@dataclass(frozen=True, slots=True)
class Blob:
    """Activations of one image, of any shape."""

    shape: Shape
    dtype: str


class Window(NamedTuple):
    """Size of the windows on an image, their distance, and the zeros around the image."""

    kernel: Pair
    stride: Pair
    padding: Pair


@dataclass(frozen=True, slots=True)
class WindowGeometry:
    """Windows on ``image`` (H, W, C), one per pixel of ``output`` (P, Q, K), whose size is already rounded.

    Weights are (K, R, S, C / groups) for a convolution, (P, Q, K, R, S, C) for a locally connected layer; in
    pooling K is C.
    """

    image: Image
    output: Image
    kernel: Pair
    stride: Pair
    padding: Pair
    dtype: str
    groups: int = 1
    relu: bool = False
    """Apply a ReLU to the outputs."""


@dataclass(frozen=True, slots=True)
class LinearGeometry:
    """Product with a matrix (outputs, inputs)."""

    inputs: int
    outputs: int
    dtype: str
    relu: bool = False
    """Apply a ReLU to the outputs."""


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
    """Batch normalisation over all axes except the last one of ``shape``."""

    shape: Shape
    eps: float
    momentum: float
    dtype: str
    joined: bool = False
    """Add a shortcut to the normalised values."""
    relu: bool = False
    """Apply a ReLU to the outputs, after the shortcut is added."""


@dataclass(frozen=True, slots=True)
class DropoutGeometry:
    """Dropout that zeroes a fraction ``ratio`` of the activations."""

    shape: Shape
    ratio: float
    dtype: str


@dataclass(frozen=True, slots=True)
class ConcatenationGeometry:
    """Concatenation of blobs of ``shapes`` along the last axis; all other axes are equal."""

    shapes: tuple[Shape, ...]
    dtype: str


def pair(value: int | Pair) -> Pair:
    """Return an int as a pair of equal values, and a pair unchanged."""
    return (value, value) if isinstance(value, int) else value


def windows(image: Pair, kernel: Pair, stride: Pair, padding: Pair, rounding: Rounding, *, layer: str) -> Pair:
    """Return the number of windows on an image, (vertical, horizontal), with Caffe's rounding.

    ``floor`` counts complete windows (convolution). ``ceil`` also counts an incomplete last window (pooling) if it
    starts inside the image or its left padding. Caffe checks that only for padded pooling; without padding, the
    omitted window would contain no pixel.

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
    counts = []
    for i in range(2):
        span = padded[i] - kernel[i]
        count = (span if rounding == "floor" else span + stride[i] - 1) // stride[i] + 1
        starts_outside = (count - 1) * stride[i] >= image[i] + padding[i]
        counts.append(count - 1 if rounding == "ceil" and starts_outside else count)
    return counts[0], counts[1]


def as_image(shape: Shape, *, layer: str) -> Image:
    """Return ``shape`` if it is (H, W, C); otherwise raise ValueError naming ``layer``."""
    if len(shape) != 3:
        raise ValueError(f"{layer}: needs an image (height, width, channels), got shape {shape}")
    return shape
