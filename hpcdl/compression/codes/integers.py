"""Entropy codes: Rice's, for gaps between entries of a known density, Elias's, Strom's words, and Huffman's."""

from heapq import heapify, heappop, heappush
from math import log2
from typing import Final

import numpy as np

from hpcdl.compression.parts.protocol import Bytes, kernels, padded
from hpcdl.fabric.comm import Array

WIDEST: Final = 31
"""Largest parameter k."""


class CompiledCode:
    """Base of codes of gaps that kernels write and read."""

    words = False

    def __init__(self) -> None:
        self._kernels = kernels(None, "integer_codes")


def check_room(wire: Bytes, most: int) -> None:
    """Raise ValueError if ``wire`` is shorter than ``most`` bytes."""
    if len(wire) < most:
        raise ValueError(f"buffer of {len(wire)} bytes is too short: a message may have {most}")


class Rice(CompiledCode):
    """Rice code: the quotient by 2^k in unary, then k bits of remainder (Rice 1979; Strom 2015, section 3).

    A message's first byte is k: the largest with ``count`` x 2^k below the sum. For gaps 2^k is then just below
    1 / density. This k costs the fewest bits at worst.
    """

    def bound(self, count: int, total: int) -> int:
        k = parameter(count, total)
        return 1 + (count * (k + 1) + (total >> k) + 7) // 8 if count else 1

    def encode(self, integers: Array, wire: Bytes) -> int:
        total = int(integers.sum(dtype=np.uint64))
        check_room(wire, self.bound(len(integers), total))
        k = parameter(len(integers), total)
        wire[0] = k
        return 1 + int(self._kernels.encode_rice(integers, wire[1:], k))

    def decode(self, message: Bytes, integers: Array) -> None:
        if not len(message) or message[0] > WIDEST:
            raise ValueError("Rice code: no parameter from 0 to 31")
        if not self._kernels.decode_rice(padded(message[1:]), len(message) - 1, int(message[0]), integers):
            raise ValueError(f"Rice code: {len(message)} bytes are not {len(integers)} integers")


def parameter(count: int, total: int) -> int:
    """Return k, 0 to 31, for ``count`` integers with sum ``total``."""
    return min(WIDEST, ((total - 1) // count).bit_length() - 1) if total > count > 0 else 0


class Elias(CompiledCode):
    """Universal code delta of x = integer + 1 (Elias 1975): no parameter, short for small integers.

    With N = floor(log2 x) and M = floor(log2(N + 1)): M zeros, N + 1 in M + 1 bits, then the N lower bits of x.
    """

    def bound(self, count: int, total: int) -> int:
        if not count:
            return 0
        logarithm = log2(1 + total / count)  # the bits are at most a concave function of it (Jensen's inequality)
        return int(count * (1 + logarithm + 2 * log2(1 + logarithm)) / 8) + 2

    def encode(self, integers: Array, wire: Bytes) -> int:
        check_room(wire, self.bound(len(integers), int(integers.sum(dtype=np.uint64))))
        return int(self._kernels.encode_elias(integers, wire, True))

    def decode(self, message: Bytes, integers: Array) -> None:
        if not self._kernels.decode_elias(padded(message), len(message), True, integers):
            raise ValueError(f"Elias code: {len(message)} bytes are not {len(integers)} integers")


class Words:
    """Code of 32-bit words: an entry's word has its position in 31 bits and its sign (Strom 2015, section 3)."""

    words = True

    def bound(self, count: int, total: int) -> int:
        del total
        return 4 * count

    def encode(self, integers: Array, wire: Bytes) -> int:
        size = 4 * len(integers)
        check_room(wire, size)
        wire[:size] = integers.astype("<u4", copy=False).view(np.uint8)
        return size

    def decode(self, message: Bytes, integers: Array) -> None:
        if len(message) != 4 * len(integers):
            raise ValueError(f"{len(message)} bytes are not {len(integers)} words")
        integers[:] = np.frombuffer(message.tobytes(), "<u4")


MAX_CODE: Final = 15
"""Most bits of a symbol; a length is half a byte of the table."""
FEW: Final = 2048
"""Integers up to which a message has the smaller table."""
NARROW, WIDE = 4, 8
HEADER: Final = 2


class Huffman(CompiledCode):
    """Canonical Huffman code of small integers; larger ones are a symbol for their length and their lower bits.

    A symbol of its own has each integer below 2^d, d = 4 or 8. An integer from 2^N on has the symbol 2^d + N - d,
    and its N lower bits follow. A message begins with the code lengths of all symbols up to the last that occurs,
    after their number in two bytes (Deep Compression: Han 2016, section 4).
    """

    def bound(self, count: int, total: int) -> int:
        return max(_bound(count, total), _bound(min(count, FEW), total))

    def encode(self, integers: Array, wire: Bytes) -> int:
        check_room(wire, self.bound(len(integers), int(integers.sum(dtype=np.uint64))))
        direct = _direct(len(integers))
        lengths = code_lengths(self._kernels.histogram(integers, direct))
        size = len(np.trim_zeros(lengths, "b"))
        table = np.append(lengths[:size], np.zeros(size % 2, np.uint8))
        end = HEADER + len(table) // 2
        wire[:HEADER] = size & 255, size >> 8
        wire[HEADER:end] = table[::2] | table[1::2] << 4
        return end + int(self._kernels.encode_huffman(integers, wire[end:], direct, lengths, canonical(lengths)))

    def decode(self, message: Bytes, integers: Array) -> None:
        direct = _direct(len(integers))
        lengths, begin = _table(message, _symbols(direct))
        body = message[begin:]
        look_up = _look_up(lengths, canonical(lengths))
        if not self._kernels.decode_huffman(padded(body), len(body), direct, look_up, integers):
            raise ValueError(f"Huffman code: {len(message)} bytes are not {len(integers)} integers")


def _bound(count: int, total: int) -> int:
    """Return the most bytes of ``count`` integers that sum to at most ``total``."""
    direct = _direct(count)
    symbols = min(_symbols(direct), total + 1)
    longest = (min(symbols, count) - 1).bit_length() if min(symbols, count) > 1 else 1
    lower = count * log2(1 + total / count) if count else 0  # at most: a concave function of the mean
    return HEADER + (symbols + 1) // 2 + int((count * longest + lower) / 8) + 2


def _direct(count: int) -> int:
    return NARROW if count <= FEW else WIDE


def _symbols(direct: int) -> int:
    return (1 << direct) + 32 - direct


def _table(message: Bytes, symbols: int) -> tuple[Array, int]:
    """Return the code lengths and the end of the table. Raises ValueError for an impossible table."""
    size = int.from_bytes(message[:HEADER].tobytes(), "little")
    end = HEADER + (size + 1) // 2
    if end > len(message) or size > symbols:
        raise ValueError("Huffman code: the table is cut off or too long")
    packed = message[HEADER:end]
    table = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
    lengths = np.zeros(symbols, np.uint8)
    lengths[:size] = table[:size]
    used = lengths[lengths > 0].astype(np.int64)
    full = int((1 << MAX_CODE >> used).sum())
    if table[size:].any() or (len(used) > 1 and full != 1 << MAX_CODE) or (len(used) == 1 and used[0] != 1):
        raise ValueError("Huffman code: impossible code lengths")
    return lengths, end


def code_lengths(counts: Array) -> Array:
    """Return each symbol's bits, uint8, at most 15; 0 for a symbol that does not occur, 1 for the only symbol.

    Longer codes are avoided by raising the least counts. The bits are never more than with equal counts.
    """
    lengths = np.zeros(len(counts), np.uint8)
    used = np.flatnonzero(counts)
    if not len(used):
        return lengths
    occurring = counts[used].astype(np.int64)
    of_values = depths(occurring.tolist())
    least = 1
    while max(of_values) > MAX_CODE:
        least *= 2
        of_values = depths(np.maximum(occurring, least).tolist())
    # Raised counts may cost more than ignoring them, and ``bound`` allows no more than equal counts do.
    even = depths([1] * len(used))
    lengths[used] = min(of_values, even, key=lambda bits: int(occurring @ np.array(bits)))
    return lengths


def depths(weights: list[int]) -> list[int]:
    """Return the depth of each weight in Huffman's tree; 1 for a single weight."""
    if len(weights) == 1:
        return [1]
    heap = [(weight, number) for number, weight in enumerate(weights)]
    heapify(heap)
    parents = [0] * (2 * len(weights) - 1)
    for number in range(len(weights), len(parents)):
        # numbers of the nodes break ties, so that all machines build one tree
        (less, left), (more, right) = heappop(heap), heappop(heap)
        parents[left] = parents[right] = number
        heappush(heap, (less + more, number))
    depth = [0] * len(parents)
    for number in range(len(parents) - 2, -1, -1):
        depth[number] = depth[parents[number]] + 1
    return depth[: len(weights)]


def canonical(lengths: Array) -> Array:
    """Return each symbol's code, uint32, its first bit lowest: codes rise with (length, symbol)."""
    codes = np.zeros(len(lengths), np.uint32)
    code, last = 0, 0
    for symbol in np.argsort(lengths, kind="stable"):
        length = int(lengths[symbol])
        if length:
            code = (code + 1 if last else 0) << (length - last)
            codes[symbol] = int(f"{code:0{length}b}"[::-1], 2)
            last = length
    return codes


def _look_up(lengths: Array, codes: Array) -> Array:
    """Return symbol x 16 + length, uint16 (2^15,), for each beginning of 15 bits; 0 where no code fits."""
    table = np.zeros(1 << MAX_CODE, np.uint16)
    for symbol in np.flatnonzero(lengths):
        table[int(codes[symbol]) :: 1 << int(lengths[symbol])] = (symbol << 4) + int(lengths[symbol])
    return table


OFFERS: Final = {"rice": Rice, "elias": Elias, "words": Words, "huffman": Huffman}
