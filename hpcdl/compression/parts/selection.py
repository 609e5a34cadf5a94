"""Selected entries: the largest by magnitudes, samples and quantiles of a vector, and their messages.

Magnitudes are compared as integers: for finite numbers, those of the bits without sign are in the same order. One
integer comparison finds large entries, infinities and NaN; compilers make vector instructions of it.

A message has positions by an entropy code or a bitmap, then signs or values.
"""

from typing import Any, Final, NoReturn

import numpy as np

from hpcdl.compression.parts.protocol import Bytes, Code, Layout, PointToPoint, Selector, Sparse, kernels
from hpcdl.fabric.comm import Array

SAMPLED: Final = 0.01
"""Share of a vector in a sample (Deep Gradient Compression: Lin 2018, section 3)."""
REACHING: Final = 50
"""Least number of entries in a sample that reach a quantile, so that their number varies by a seventh."""
MIN_SAMPLE: Final = 4096
"""Least size of a sample; a shorter vector is taken whole."""

Magnitude = np.unsignedinteger[Any]


def bits_of(vector: Array) -> Array:
    """Return a view of ``vector``, float32 or float64, as unsigned integers."""
    return vector.view(np.dtype(f"u{vector.itemsize}"))


def bits(value: float, dtype: np.dtype[np.generic]) -> Magnitude:
    """Return the bits of the magnitude of ``value``, which is rounded to ``dtype``."""
    return bits_of(np.abs(np.array([value], dtype)))[0]  # type: ignore[no-any-return]


def largest(magnitudes: Array, count: int) -> Array:
    """Return a mask of the ``count`` largest of more magnitudes."""
    # Entries equal to the least one fill the remaining places in order: all machines choose alike.
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    chosen: Array = magnitudes > least
    ties = np.flatnonzero(magnitudes == least)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return chosen


def quantile(sampled: Array, share: float) -> Magnitude:
    """Return the magnitude that this share of ``sampled`` reaches; ``sampled`` is put into another order."""
    rank = max(0, min(len(sampled) - 1, len(sampled) - round(share * len(sampled))))
    sampled.partition(rank)
    return sampled[rank]  # type: ignore[no-any-return]


def refuse(vector: Array, begin: int) -> NoReturn:
    """Raise FloatingPointError, which names the first value that is not finite."""
    position = int(np.flatnonzero(~np.isfinite(vector))[0])
    raise FloatingPointError(f"element {begin + position} of the flat gradient is {float(vector[position])}")


def subset(count: int, length: int, seed: int) -> Array:
    """Return ``count`` of the positions 0 to ``length`` - 1, int32, rising; all subsets are equally likely.

    Positions are drawn until enough are different; of more than half of them, those left out are drawn.
    """
    positions = np.empty(count, np.int32)
    kernels(None, "reproducible").subset(positions, length, np.uint64(seed))
    return positions


def gaps(indices: Array) -> Array:
    """Return the zeros before each of rising positions, uint32: of 0, 1, 5 they are 0, 0, 3."""
    ahead = indices.astype(np.uint32)
    ahead[1:] -= ahead[:-1].copy() + np.uint32(1)
    return ahead


def bitmap_of(indices: Array, length: int) -> Bytes:
    """Return one bit per position of a vector of ``length``, the first lowest; set at ``indices``."""
    marked = np.zeros(length, bool)
    marked[indices] = True
    return np.packbits(marked, bitorder="little")


def unpacked(bits: Bytes, count: int) -> Array:
    """Return ``count`` bits, bool. Raises ValueError if a bit behind them is set."""
    marked = np.unpackbits(bits, bitorder="little").view(bool)
    if marked[count:].any():
        raise ValueError(f"a bit is set behind {count}")
    return marked[:count]


def rising(ahead: Array, length: int, indices: Array) -> bool:
    """Fill ``indices``, int32, from gaps, uint32; return False if a position is not below ``length``."""
    # A corrupt message's gaps may add up to more than 32 bits have.
    positions = np.cumsum(ahead, dtype=np.int64) + np.arange(len(ahead))
    indices[:] = positions
    return not len(positions) or bool(positions[-1] < length)


MARGIN = 1.1
"""Candidates sought per entry wanted, besides three standard deviations of the sample."""


def entries(density: float, length: int) -> int:
    """Return the number of entries at this density: at least one of a vector that is not empty."""
    return min(length, max(1, round(density * length)))


def check_density(density: float) -> None:
    """Raise ValueError unless ``density`` is above 0 and at most 1."""
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, not {density}")


def draw_seed(layout: Layout, begin: int, step: int) -> int:
    """Return a seed for the piece at ``begin`` in this step, the same on all ranks."""
    return int(np.random.SeedSequence([layout.seed, begin, step]).generate_state(1, np.uint64)[0])


class Search:
    """Search for the entries of largest magnitude in pieces of one layout's gradient, on its device.

    Positions, int32 and rising, and samples are on the host.
    """

    def __init__(self, layout: Layout) -> None:
        self.kernels = kernels(layout.device, "entries")
        self._layout = layout

    def sample(self, vector: Array, begin: int, step: int, share: float) -> Array:
        """Return the bits of the magnitudes of 1 % of ``vector``, for the quantile of this ``share``.

        More are taken if fewer than 50 would reach the quantile, or if they were fewer than 4096. One entry is
        drawn from each of equal pieces of the vector. ``begin``: its position in the whole gradient.
        """
        size = min(len(vector), max(MIN_SAMPLE, int(REACHING / share), int(SAMPLED * len(vector))))
        sampled = np.empty(size, f"u{vector.itemsize}")
        self.kernels.sample(vector, sampled, np.uint64(draw_seed(self._layout, begin, step)))
        return sampled

    def largest(self, vector: Array, begin: int, threshold: Magnitude, expected: int) -> Array:
        """Return the positions of all entries whose magnitude has at least the bits ``threshold``.

        ``expected`` is their likely number. Raises FloatingPointError for a value that is not finite.
        """
        positions, finite = self.kernels.find(vector, threshold, expected)
        if not finite:
            refuse(vector, begin)
        return positions  # type: ignore[no-any-return]

    def top(self, vector: Array, begin: int, step: int, k: int) -> Array:
        """Return the positions of the ``k`` entries with the largest magnitudes.

        Of equal magnitudes the first are taken; zeros never are. A sample gives a threshold that somewhat more
        entries reach; if too few do, all are searched. Raises FloatingPointError as :meth:`largest`.
        """
        if not len(vector):
            return np.empty(0, np.int32)
        sampled = self.sample(vector, begin, step, k / len(vector))
        wanted = k * len(sampled) / len(vector)
        # At least the bits of the smallest number above zero, so that zeros are left out.
        threshold = max(
            sampled.dtype.type(1), quantile(sampled, (MARGIN * wanted + 3 * wanted**0.5 + 1) / len(sampled))
        )
        positions = self.largest(vector, begin, threshold, round(1.5 * k))
        if len(positions) < k and threshold > 1:
            positions = self.largest(vector, begin, sampled.dtype.type(1), len(vector))
        return self.trimmed(vector, positions, k)

    def trimmed(self, vector: Array, positions: Array, k: int) -> Array:
        """Return those ``k`` of ``positions`` with the largest magnitudes, or all if there are no more."""
        if len(positions) <= k:
            return positions
        return positions[largest(bits_of(np.abs(self.kernels.take(vector, positions))), k)]


STEP_BYTES: Final = 8
"""Bytes of the step: a receiver draws the positions of that step."""


class VectorMessages:
    """An encoder: the step, then the one vector of a summable compressor.

    ``fed_back``: what is not sent is in a residual; without it :meth:`encode` leaves no meaning in its vector.
    """

    def __init__(self, compressor: PointToPoint, *, fed_back: bool) -> None:
        self.state = compressor.state
        self._compressor = compressor
        self._fed_back = fed_back

    def bound(self, span: slice) -> int:
        size, dtype = self._vector(span)
        return STEP_BYTES + size * np.dtype(dtype).itemsize

    expected = bound

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        rounds = self._compressor.rounds(span, vector, vector if self._fed_back else None, step)
        length = self.expected(span)
        wire[:STEP_BYTES].view(np.uint64)[0] = step
        wire[STEP_BYTES:length] = np.asarray(next(rounds)).view(np.uint8)
        return length

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        if len(message) != self.expected(span):
            raise ValueError(f"{len(message)} bytes, not {self.expected(span)}")
        _, dtype = self._vector(span)
        step = int(message[:STEP_BYTES].view(np.uint64)[0])
        values = np.empty_like(into)
        try:
            self._compressor.restore(span, message[STEP_BYTES:].view(dtype), values, step, fed_back=self._fed_back)
        except FloatingPointError:
            raise ValueError("message has a value that is not finite") from None
        into += values

    def _vector(self, span: slice) -> tuple[int, str]:
        ((size, dtype),) = self._compressor.lengths(span)
        return size, dtype


BITMAP: Final = 1
"""Flag in the first byte: a bitmap has the positions, not the code."""
VALUES: Final = 2
"""Flag in the first byte: values follow; without it one magnitude and signs."""
HEADER: Final = 5
"""Bytes of flags and number of entries."""
PROBE: Final = 4096
"""Most entries in the message that :meth:`SparseMessages.expected` tries."""


class SparseMessages:
    """An encoder: a selector's entries, with their positions in an entropy code.

    A message has flags (a byte), the number k of entries (four bytes), positions and values. Positions are gaps
    between entries in the code, or a bitmap of the vector if that is shorter. Values have the dtype of the vector.
    If all have one magnitude, that comes before the positions, and k bits of signs after them. A code with
    :attr:`~hpcdl.compression.parts.protocol.Code.words` takes the signs with the positions. The message of no
    entry is empty.
    """

    def __init__(self, layout: Layout, selector: Selector, code: Code) -> None:
        self.selector = selector
        self.code = code
        self.state = selector.state
        self.entries = 0
        """Entries encoded so far."""
        self.wire_bytes = 0
        """Bytes of their messages: 8 x wire_bytes / entries are the bits per entry."""
        self.last: tuple[slice, Bytes] | None = None
        """Span and message of the last encoding."""
        self._dtype = np.dtype(layout.dtype)
        self._kernels = kernels(layout.device, "entries")

    def bound(self, span: slice) -> int:
        length, most = span.stop - span.start, self.selector.most(span)
        if most == 0:
            return 0
        bitmap = (length + 7) // 8
        positions = min(bitmap, self.code.bound(most, length))  # fewer entries have more zeros between them
        joined = self.code.words and positions < bitmap
        size = self._dtype.itemsize
        signs = size + (0 if joined else (most + 7) // 8)
        return int(HEADER + positions + (signs if self.selector.signs else max(signs, most * size)))

    def expected(self, span: slice) -> int | None:
        # the code is tried on random positions of the usual density
        count, length = self.selector.expected(span), span.stop - span.start
        if count is None or count == 0:
            return count
        tried = min(count, PROBE)
        positions = subset(tried, length * tried // count, 0)
        values = (
            np.ones(tried, self._dtype) if self.selector.signs else np.arange(1, tried + 1).astype(self._dtype)
        )
        body = len(self.write(Sparse(positions, values), length * tried // count)) - HEADER
        return HEADER + body * count // tried

    def encode(self, span: slice, vector: Array, wire: Bytes, step: int) -> int:
        entries = self.selector.select(span, vector, step)
        message = self.write(entries, len(vector))
        wire[: len(message)] = message
        self.entries += len(entries.indices)
        self.wire_bytes += len(message)
        self.last = span, message
        return len(message)

    def decode(self, span: slice, message: Bytes, into: Array) -> None:
        self._kernels.add(*self.read(message, span.stop - span.start), into)

    def bits_per_entry(self) -> tuple[float, float] | None:
        """Return bits per entry of all messages, and of an ideal code of the last one; None without entries.

        An ideal code has the entropy of the gaps (Shannon 1948), and a bit for the sign or the bits of a value.
        """
        if not self.entries or self.last is None:
            return None
        span, message = self.last
        indices = self.read(message, span.stop - span.start).indices
        ideal = 0.0
        if len(indices):
            shares = np.unique(gaps(indices), return_counts=True)[1] / len(indices)
            ideal = float(-(shares * np.log2(shares)).sum()) + (
                8 * self._dtype.itemsize if message[0] & VALUES else 1
            )
        return 8 * self.wire_bytes / self.entries, ideal

    def write(self, entries: Sparse, length: int) -> Bytes:
        """Return the message of these entries of a vector of ``length``."""
        count = len(entries.indices)
        if not count:
            return np.empty(0, np.uint8)
        magnitudes = np.abs(entries.values)
        signs = bool(magnitudes[0] > 0 and (magnitudes == magnitudes[0]).all())
        negative = np.signbit(entries.values)
        bitmap = (length + 7) // 8
        if self.code.words:
            integers = entries.indices.astype(np.uint32) << 1 | (negative & signs)
        else:
            integers = gaps(entries.indices)
        positions = np.empty(self.code.bound(count, length - count), np.uint8)
        positions = positions[: self.code.encode(integers, positions)]
        coded = len(positions) < bitmap
        if not coded:
            positions = bitmap_of(entries.indices, length)
        header = np.empty(HEADER, np.uint8)
        header[0] = (not coded) * BITMAP | (not signs) * VALUES
        header[1:].view("<u4")[0] = count
        if not signs:
            return np.concatenate([header, positions, entries.values.view(np.uint8)])
        pieces = [header, magnitudes[:1].view(np.uint8), positions]
        if not (coded and self.code.words):
            pieces.append(np.packbits(negative, bitorder="little"))
        return np.concatenate(pieces)

    def read(self, message: Bytes, length: int) -> Sparse:
        """Return the entries of a message of a vector of ``length``. Raises ValueError for a corrupt message."""
        if not len(message):
            return Sparse(np.empty(0, np.int32), np.empty(0, self._dtype))
        flags, count = int(message[0]), int.from_bytes(message[1:HEADER].tobytes(), "little")
        if len(message) < HEADER or flags > BITMAP | VALUES or not 0 < count <= length:
            raise ValueError(f"message of {len(message)} bytes has no header, or {count} of {length} entries")
        size, rest = self._dtype.itemsize, message[HEADER:]
        joined = self.code.words and not flags & BITMAP
        before = 0 if flags & VALUES else size
        after = count * size if flags & VALUES else (count + 7) // 8 * (not joined)
        if len(rest) < before + after:
            raise ValueError(f"message of {count} entries is cut off")
        body, end = rest[before : len(rest) - after], rest[len(rest) - after :]
        indices, negative = self._positions(body, length, count, flags)
        if flags & VALUES:
            values = np.frombuffer(end.tobytes(), self._dtype)
            if negative.any():
                raise ValueError("message has signs twice")
        else:
            values = np.repeat(np.frombuffer(rest[:before].tobytes(), self._dtype), count)
            if not values[0] > 0:
                raise ValueError("magnitude of a message is not above zero")
            if not joined:
                negative = unpacked(end, count)
            values = np.where(negative, -values, values)
        if not np.isfinite(values).all():
            raise ValueError("message has a value that is not finite")
        return Sparse(indices, values)

    def _positions(self, body: Bytes, length: int, count: int, flags: int) -> tuple[Array, Array]:
        """Return positions and, from words, signs."""
        if flags & BITMAP:
            if len(body) != (length + 7) // 8:
                raise ValueError(f"bitmap of {len(body)} bytes is not of {length} entries")
            indices = np.flatnonzero(unpacked(body, length)).astype(np.int32)
            if len(indices) != count:
                raise ValueError(f"bitmap has {len(indices)} entries, not {count}")
            return indices, np.zeros(count, bool)
        integers = np.empty(count, np.uint32)
        self.code.decode(body, integers)
        negative = (integers & np.uint32(self.code.words)).astype(bool)
        ahead = gaps((integers >> np.uint32(1)).view(np.int32)) if self.code.words else integers
        indices = np.empty(count, np.int32)
        if not rising(ahead, length, indices):
            raise ValueError(f"positions are not within {length} entries")
        return indices, negative
