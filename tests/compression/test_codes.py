"""Codes beside independent coders in plain Python and constriction; bounds; corrupt messages."""

import constriction
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.compression.parts.protocol import LARGEST

CODES = {name: registry.find("codes", name)() for name in registry.names("codes")}

sequences = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 300), st.integers(0, LARGEST)), max_size=60)


def encoded(code, integers):
    """The message, from a buffer of exactly the bound with guards on both sides."""
    room = code.bound(len(integers), sum(map(int, integers)))
    guarded = np.full(room + 32, 171, np.uint8)
    size = code.encode(np.array(integers, np.uint32), guarded[16 : 16 + room])
    assert size <= room
    assert (guarded[:16] == 171).all() and (guarded[16 + room :] == 171).all()
    return guarded[16 : 16 + size].copy()


def decoded(code, message, count):
    guarded = np.full(count + 32, 0xABABABAB, np.uint32)
    try:
        code.decode(message, guarded[16 : 16 + count])
    finally:
        assert (guarded[:16] == 0xABABABAB).all() and (guarded[16 + count :] == 0xABABABAB).all()
    return guarded[16 : 16 + count].tolist()


def in_bytes(bits):
    """Bytes of a string of 0 and 1, the first bit lowest."""
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8)]


def number(value, width):
    """The bits of a number, the lowest first."""
    return f"{value:0{width}b}"[::-1] if width else ""


def rice(value, k):
    return "0" * (value >> k) + "1" + number(value & ((1 << k) - 1), k)


def gamma(x):
    n = x.bit_length() - 1
    return "0" * n + "1" + number(x - (1 << n), n)


def delta(x):
    n = x.bit_length() - 1
    return gamma(n + 1) + number(x - (1 << n), n)


@pytest.mark.parametrize("name", CODES)
@given(sequences)
@settings(deadline=None, max_examples=20)
def test_messages_give_the_integers_back(name, integers):
    assert decoded(CODES[name], encoded(CODES[name], integers), len(integers)) == integers


@pytest.mark.parametrize("name", ["elias", "rice"])
@given(sequences)
@settings(deadline=None, max_examples=40)
def test_messages_have_the_bits_of_a_plain_coder(name, integers):
    """The first byte of Rice's code is its parameter."""
    message = encoded(CODES[name], integers).tolist()
    head, body = (message[:1], message[1:]) if name == "rice" else ([], message)
    assert body == in_bytes("".join(rice(one, *head) if head else delta(one + 1) for one in integers))


@pytest.mark.parametrize("largest", [2, 40, 255, 5000])
@pytest.mark.parametrize("count", [100, 3000])
def test_huffman_has_as_few_bits_as_constriction(count, largest):
    """Beside the table; numbers above 2^d are a symbol and their lower bits."""
    draws = np.random.default_rng(largest).geometric(min(0.7, 3 / largest), count).clip(1, largest) - 1
    direct = 4 if count <= 2048 else 8
    exponents = [one.bit_length() - 1 - direct for one in draws.tolist()]
    symbols = [one if up < 0 else (1 << direct) + up for one, up in zip(draws.tolist(), exponents, strict=True)]
    used = sorted(set(symbols))
    shares = np.array([symbols.count(one) for one in used], np.float64) / count
    tree = constriction.symbol.huffman.EncoderHuffmanTree(shares)
    coder = constriction.symbol.QueueEncoder()
    for symbol in symbols:
        coder.encode_symbol(used.index(symbol), tree)
    bits = coder.get_compressed()[1] + sum(direct + up for up in exponents if up >= 0)
    table = 2 + (max(symbols) + 2) // 2
    assert len(encoded(CODES["huffman"], draws)) == table + (bits + 7) // 8


def test_huffman_limits_its_codes_to_15_bits():
    """Counts like Fibonacci's numbers give the deepest trees."""
    counts = [1, 1]
    while len(counts) < 26:
        counts.append(counts[-1] + counts[-2])
    integers = np.repeat(np.arange(len(counts)), counts).astype(np.uint32)
    message = np.empty(CODES["huffman"].bound(len(integers), int(integers.sum())), np.uint8)
    size = CODES["huffman"].encode(integers, message)
    back = np.empty_like(integers)
    CODES["huffman"].decode(message[:size], back)
    assert (back == integers).all()
    deep = sum(count * min(len(counts) - 1, len(counts) - i) for i, count in enumerate(counts))
    assert deep < 8 * size < 1.001 * deep + 8 * 20


def test_rice_is_within_a_hundredth_of_its_ideal():
    """The ideal is the least expected length over all k, of gaps at random; a sign is one bit more."""
    for density in [0.0001, 0.0036, 0.01, 0.1]:
        gaps = np.random.default_rng(0).geometric(density, 200_000) - 1
        measured = 8 * len(encoded(CODES["rice"], gaps)) / len(gaps)
        ideal = min(k + 1 / (1 - (1 - density) ** (1 << k)) for k in range(20))
        assert measured + 1 == pytest.approx(ideal + 1, rel=0.01)


def test_bounds_hold_for_less():
    """So that the bound of the most entries in a vector holds for fewer."""
    for bound in (code.bound for code in CODES.values()):
        for size in (1, 2, 7, 100, 2047, 5000):
            for bounds in (
                [bound(size, total) for total in range(0, 40 * size, max(1, size // 7))],
                [bound(count, 30 * size) for count in range(size + 1)],
            ):
                assert bounds == sorted(bounds)


@pytest.mark.parametrize("name", CODES)
@given(st.binary(max_size=80), st.integers(0, 40))
@settings(deadline=None, max_examples=150)
def test_any_bytes_are_integers_or_refused(name, data, count):
    try:
        decoded(CODES[name], np.frombuffer(data, np.uint8), count)
    except ValueError:
        return


@pytest.mark.parametrize("name", CODES)
@given(sequences, st.data())
@settings(deadline=None, max_examples=40)
def test_messages_cut_off_or_lengthened_are_refused(name, integers, data):
    code, message = CODES[name], encoded(CODES[name], integers)
    with pytest.raises(ValueError):
        decoded(code, np.append(message, np.uint8(data.draw(st.integers(0, 255)))), len(integers))
    if len(message):
        with pytest.raises(ValueError):
            decoded(code, message[: data.draw(st.integers(0, len(message) - 1))], len(integers))
