"""Protocols of compressors. A file of ``hpcdl/compression`` offers a class that follows one of them.

The class is called with a :class:`Layout`; its keyword-only parameters are the settings of a suite. One object
serves one rank for a whole training. It computes on arrays and never communicates.

A piece of the flat gradient is given by its ``span`` and the ``vector`` with its values, (span length,), which the
compressor may change. ``step`` counts the exchanges of the rank: random draws and warm-ups depend on it.

=================  ================================================================================
:class:`Summable`  yields vectors that any aggregation sums: fp16, bf16, power_sgd, random_k
:class:`Selector`  selects entries: threshold, top_k, dgc; an entropy code makes messages of them
:class:`Encoder`   makes messages itself: one_bit, sign, qsgd, terngrad
=================  ================================================================================

Below: segments of the gradient, memory and kernels of the device that holds it, and checks of values and messages.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array, Device

Bytes = npt.NDArray[np.uint8]
"""A message or its buffer, (bytes,)."""


class Tensor(Protocol):
    """Properties of :class:`hpcdl.nn.replica.Tensor` that a compressor depends on."""

    @property
    def name(self) -> str: ...
    @property
    def span(self) -> slice: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The flat gradient that a compressor is made for."""

    size: int
    """Elements of the whole gradient."""
    tensors: Sequence[Tensor] = ()
    """Tensors in the flat vector."""
    dtype: str = "float32"
    rank: int = 0
    ranks: int = 1
    seed: int = 0
    device: Device | None = None
    """Device whose memory holds the gradient; None: the host's."""


class Sparse(NamedTuple):
    """Entries of a vector; all others are zero."""

    indices: Array
    """Positions, rising, int32 (k,)."""
    values: Array


class Summable(Protocol):
    """A compressor whose vectors can be summed on their way, by any aggregation."""

    state: dict[str, Array]
    """Vectors that the compressor holds besides the residual, by name."""

    def rounds(self, span: slice, vector: Array, residual: Array | None, step: int) -> Iterator[Array]:
        """Yield vectors, one after the other; the caller sums each over all ranks, in place, before the next.

        At the end ``vector`` holds the sum over ranks as all ranks know it, and ``residual``, unless it is None,
        what this rank's input had more than its part of that sum: summed over ranks, residual + vector = input.
        Raises FloatingPointError for a value, or a sum, that is infinite or not a number.
        """

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        """Return elements and dtype of each vector that :meth:`rounds` yields."""


class PointToPoint(Summable, Protocol):
    """A :class:`Summable` of one vector, which a receiver can read without a sum."""

    def restore(self, span: slice, sent: Array, vector: Array, step: int, *, fed_back: bool) -> None:
        """Set ``vector`` to the values that :meth:`rounds` made ``sent`` of, in the same step.

        ``fed_back``: what is not sent is in a residual. Raises FloatingPointError for an infinite value.
        """


class Selector(Protocol):
    """A compressor that sends some entries."""

    state: dict[str, Array]
    signs: bool
    """All values of a selection have one magnitude, so that a message has one number and signs."""

    def select(self, span: slice, vector: Array, step: int) -> Sparse:
        """Return the entries to send; ``vector`` keeps what is not sent. Positions count from the span's start.

        Raises FloatingPointError for a value that is infinite or not a number.
        """

    def most(self, span: slice) -> int:
        """Return the most entries that :meth:`select` returns."""

    def expected(self, span: slice) -> int | None:
        """Return the usual number of entries; None if it depends on the values."""


class Encoder(Protocol):
    """A compressor that makes its own messages."""

    state: dict[str, Array]

    def bound(self, span: slice) -> int:
        """Return the most bytes of a message."""

    def expected(self, span: slice) -> int | None:
        """Return the usual bytes of a message; None if they depend on the values."""

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        """Write a message to ``wire``, (bound,); return its bytes. ``vector`` keeps what is not sent.

        Raises FloatingPointError for a value that is infinite or not a number.
        """

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        """Add the decoded message to ``into``, (span length,).

        Raises ValueError for a corrupt message; then ``into`` has no meaning.
        """


@dataclass(frozen=True, kw_only=True)
class Compression:
    """Traits of a compressor. A module that declares none has the defaults."""

    error_feedback: bool = True
    """The part that is not sent is added to the next gradient; the default of the cases."""
    whole_tensors: bool = False
    """Takes whole tensors: buckets are cut between tensors only."""
    both_ways: bool = False
    """Servers may sum its messages: they encode the sum again, with a residual of their own."""
    scaled: bool = True
    """Decoded values are about as large as those encoded; False: only their signs matter."""
    sends_zeros: bool = True
    """An entry that is zero on all ranks stays zero; False: pruned weights would not."""
    own_sums: bool = False
    """Its vectors have a type that only their own addition sums, and no library."""
    dependent_sums: bool = False
    """A sum of its vectors waits for another one."""
    rounds_values: bool = False
    """Rounds each value to a narrower type, so that parameters can be sent so as well."""
    own_momentum: bool = False
    """Has the momentum in its state, so that the optimizer must have none."""
    own_residual: str = ""
    """Vector in its ``state`` that holds what is not sent; for compressors without other error feedback."""
    on_device: bool = False
    """Computes where the gradient is, also in the memory of a GPU."""
    title: str = ""
    """Source in the literature, author and year."""


@runtime_checkable
class SharedScalers(Encoder, Protocol):
    """An :class:`Encoder` whose ranks share scalers if servers sum its messages, so that sums have few levels."""

    def count(self, span: slice) -> int:
        """Return the number of scalers of ``span``."""

    def scalers(self, span: slice, vector: Array) -> Array:
        """Return the scalers of this rank's ``vector``, on the host (count,)."""

    def share(self, span: slice, scalers: Array) -> None:
        """Use ``scalers``, the largest of all ranks, for the next message of ``span`` and for its sum."""

    def of_sums(self) -> Encoder:
        """Return the encoder of sums of messages, which loses nothing."""


def check_finite(finite: bool | np.bool_) -> None:
    """Raise FloatingPointError unless ``finite``."""
    if not finite:
        raise FloatingPointError("the gradient has a value that is infinite, too large, or not a number")


def check_length(message: Bytes, length: int) -> None:
    """Raise ValueError if a message has not ``length`` bytes."""
    if len(message) != length:
        raise ValueError(f"corrupt message: {len(message)} bytes instead of {length}")


def check_values(valid: Array | bool) -> None:
    """Raise ValueError unless all of ``valid`` are true."""
    if not np.all(valid):
        raise ValueError("corrupt message: an impossible value")


class Segments:
    """Boundaries of segments, given by where each starts; a span may cut a segment."""

    def __init__(self, starts: Iterable[int]) -> None:
        self._starts = np.unique(np.fromiter(starts, np.int64))
        self._cuts: dict[tuple[int, int], Array] = {}

    def cuts(self, span: slice) -> Array:
        """Return the boundaries within ``span``, int64 (segments + 1,): from 0 to the span's length."""
        bounds = (span.start, span.stop)
        if bounds not in self._cuts:
            inner = self._starts[(self._starts > span.start) & (self._starts < span.stop)] - span.start
            end = [span.stop - span.start][: span.stop > span.start]
            self._cuts[bounds] = np.concatenate([[0], inner, end], dtype=np.int64, casting="unsafe")
        return self._cuts[bounds]

    def count(self, span: slice) -> int:
        """Return the number of segments within ``span``."""
        return len(self.cuts(span)) - 1


def tensors(layout: Layout) -> Segments:
    """Return one segment per tensor; the whole gradient without tensors."""
    return Segments(tensor.span.start for tensor in layout.tensors)


def rows(layout: Layout) -> Segments:
    """Return one segment per index of a matrix's or convolution's first axis, and one per vector."""
    return Segments(
        start
        for tensor in layout.tensors
        for start in range(
            tensor.span.start,
            tensor.span.stop,
            max(1, math.prod(tensor.shape[1:] if len(tensor.shape) > 1 else tensor.shape)),
        )
    )


KERNELS = "hpcdl.compression.kernels"


def kernels(device: Device | None, name: str) -> Any:
    """Return the kernels ``name`` for vectors on ``device``; numba's for the host's memory, None.

    ``kernels/NAME.py`` and a class of ``kernels/cuda_launchers.py`` offer the same functions. Vectors are where
    the gradient is; messages and numbers per segment are on the host. Libraries are loaded here, not when
    compressors are listed.
    """
    if device is None:
        return import_module(f"{KERNELS}.{name}")
    return import_module(f"{KERNELS}.cuda_launchers").launcher(device, name)


class FixedLength:
    """Base of encoders whose messages of a span are equally long: numbers of segments, then bits of entries.

    ``name``: of the kernels. ``numbers``: in a message, per segment. ``bits``: per entry.
    """

    def __init__(self, name: str, layout: Layout, segments: Segments, *, numbers: int, bits: int) -> None:
        self.state: dict[str, Array] = {}
        self.segments = segments
        self._kernels = kernels(layout.device, name)
        self._dtype = np.dtype(layout.dtype)
        self._numbers, self._bits = numbers, bits

    def bound(self, span: slice) -> int:
        """Return the bytes of a message."""
        return self._header(span) + (self._bits * int(span.stop - span.start) + 7) // 8

    expected = bound

    def _header(self, span: slice) -> int:
        return self.segments.count(span) * self._numbers * self._dtype.itemsize

    def _opened(self, span: slice, message: Bytes) -> tuple[Array, Bytes]:
        """Return the numbers of a message, and its bits. Raises ValueError for a wrong length or padding."""
        check_length(message, self.bound(span))
        bits = self._bits * int(span.stop - span.start)
        if bits % 8 and message[-1] >> bits % 8:
            raise ValueError("corrupt message: bits are set after the last entry")
        header = self._header(span)
        return message[:header].copy().view(self._dtype), message[header:]


def to_device(device: Device | None, array: Array) -> Array:
    """Return a host array where the gradient is."""
    return array if device is None else device.asarray(array)


def to_host(device: Device | None, array: Array) -> Array:
    """Return an array of the gradient's memory on the host."""
    return array if device is None else device.to_host(array)


PADDING: Final = 16
"""Zero bytes after a message, so that kernels need not check its end before each read."""
LARGEST: Final = (1 << 32) - 1
"""Largest integer."""


class Code(Protocol):
    """A code of sequences of integers. Its keyword-only parameters are settings of a suite."""

    words: bool
    """Takes an entry's position and sign as one integer, 2 x position + sign, instead of gaps."""

    def bound(self, count: int, total: int) -> int:
        """Return the most bytes of at most ``count`` integers that sum to at most ``total``."""

    def encode(self, integers: Array, wire: Bytes) -> int:
        """Write ``integers``, uint32 (count,), to ``wire``, (bound,); return the bytes.

        Raises ValueError if ``wire`` is too short.
        """

    def decode(self, message: Bytes, integers: Array) -> None:
        """Fill ``integers``, uint32 (count,), from the whole ``message``.

        Raises ValueError for a message that cannot have been encoded from ``count`` integers. ``integers`` then
        has no meaning.
        """


def padded(message: Bytes) -> Bytes:
    """Return a copy of ``message`` with :data:`PADDING` zero bytes at its end."""
    return np.concatenate([message, np.zeros(PADDING, np.uint8)])
