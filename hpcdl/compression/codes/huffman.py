"""Huffman's code: canonical, with its table in the message."""

from heapq import heapify, heappop, heappush
from math import log2
from typing import Final

import numpy as np

from hpcdl.compression.parts.protocol import Bytes, CompiledCode, check_room, padded
from hpcdl.fabric.comm import Array

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
