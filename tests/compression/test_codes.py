"""Codes beside independent coders, and messages of selected entries: they come back; bounds; corrupt ones are refused."""

from types import SimpleNamespace

import constriction
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.compression.parts.protocol import LARGEST, Layout, Sparse
from hpcdl.compression.parts.selection import HEADER, SparseMessages

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
@given(sequences, st.data())
@settings(deadline=None, max_examples=40)
def test_messages_give_the_integers_back_and_are_refused_if_cut_off_or_lengthened(name, integers, data):
    code, message = CODES[name], encoded(CODES[name], integers)
    assert decoded(code, message, len(integers)) == integers
    with pytest.raises(ValueError):
        decoded(code, np.append(message, np.uint8(data.draw(st.integers(0, 255)))), len(integers))
    if len(message):
        with pytest.raises(ValueError):
            decoded(code, message[: data.draw(st.integers(0, len(message) - 1))], len(integers))


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


def messages(code, found, length, dtype="float32", most=None):
    most = len(found.indices) if most is None else most
    stated = {"most": lambda _: most, "expected": lambda _: most, "select": lambda *_: found}
    chosen = SimpleNamespace(signs=len({*np.abs(found.values).tolist()}) == 1, state={}, **stated)
    return SparseMessages(Layout(size=length, dtype=dtype), chosen, registry.find("codes", code)())


@st.composite
def selections(draw):
    """Length and entries: any density, one magnitude or several."""
    length = draw(st.integers(1, 400))
    chosen = draw(st.sets(st.integers(0, length - 1), max_size=draw(st.integers(0, length))))
    indices = np.array(sorted(chosen), np.int32)
    signs = np.array(draw(st.lists(st.sampled_from([-1, 1]), min_size=len(indices), max_size=len(indices))), int)
    least = draw(st.sampled_from([1e-45, 1e-3, 1.0]))
    values = np.full(len(indices), least) if draw(st.booleans()) else np.arange(1, len(indices) + 1) * 0.125
    dtype = draw(st.sampled_from(["float32", "float64"]))
    return length, Sparse(indices, (values * signs).astype(dtype)), dtype


def message_of(messages, length):
    """The message, from a buffer of exactly the bound with a guard behind it."""
    span = slice(0, length)
    room = messages.bound(span)
    wire = np.full(room + 16, 171, np.uint8)
    size = messages.encode(span, np.zeros(length, "float32"), wire[:room], 0)
    assert size <= room
    assert (wire[room:] == 171).all()
    return wire[:size].copy()


@pytest.mark.parametrize("code", CODES)
@given(selections(), st.integers(0, 50), st.data())
@settings(deadline=None, max_examples=40)
def test_entries_come_back_bit_for_bit_and_a_damaged_message_is_refused(code, selection, more, data):
    """One that is cut off, lengthened, or of another length; a bound for more entries changes nothing."""
    length, found, dtype = selection
    most = min(length, len(found.indices) + more)
    message = message_of(messages(code, found, length, dtype, most), length)
    coder = messages(code, found, length, dtype)
    back = coder.read(message, length)
    assert back.indices.tolist() == found.indices.tolist()
    assert back.values.tobytes() == found.values.tobytes()
    into = np.zeros(length, dtype)
    corrupt = [np.append(message, np.uint8(data.draw(st.integers(0, 255))))]
    if len(message):
        corrupt.append(message[: data.draw(st.integers(1, len(message) - 1))])
    for one in corrupt:
        with pytest.raises(ValueError):
            coder.decode(slice(0, length), one, into)
    if len(message) and found.indices[-1] > 0:
        with pytest.raises(ValueError):
            coder.decode(slice(0, found.indices[-1]), message, into[: found.indices[-1]])
    assert not into.any()


@pytest.mark.parametrize("code", CODES)
@given(st.one_of(st.binary(max_size=60), selections()), st.integers(0, 100), st.data())
@settings(deadline=None, max_examples=60)
def test_any_bytes_are_finite_entries_or_change_nothing(code, source, length, data):
    if isinstance(source, bytes):
        message = np.frombuffer(source, np.uint8)
    else:
        length, found, dtype = source
        message = message_of(messages(code, found, length, dtype), length)
        for _ in range(3 if len(message) else 0):
            message[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    guarded = np.zeros(length + 32, np.float32)
    coder = messages(code, Sparse(np.array([], np.int32), np.array([], np.float32)), length)
    try:
        coder.decode(slice(0, length), message, guarded[16 : 16 + length])
    except ValueError:
        assert not guarded.any()
    assert np.isfinite(guarded).all()
    assert not guarded[:16].any()
    assert not guarded[16 + length :].any()


def at_density(density, length=2_500_000, *, signs=True):
    generator = np.random.default_rng(3)
    indices = np.flatnonzero(generator.random(length) < density).astype(np.int32)
    values = generator.standard_normal(len(indices)).astype(np.float32)
    return Sparse(indices, np.copysign(np.float32(0.01), values) if signs else values), length


def test_rice_takes_less_than_10_8_bits_at_strom_s_density():
    """A third of his words; both counted on whole messages. An ideal code has the entropy of the gaps and a sign."""
    found, length = at_density(0.0036)
    coders = [messages(code, found, length) for code in ("rice", "words")]
    for coder in coders:
        message_of(coder, length)
    (rice, ideal), (words, _) = (coder.bits_per_entry() for coder in coders)
    assert 10.4 < ideal < rice <= 10.8
    assert words / rice == pytest.approx(3.0, abs=0.02)
    assert words == 8 * (HEADER + 4 + 4 * len(found.indices)) / len(found.indices)


def test_bounds_are_tight_for_entries_at_random():
    """Within a tenth for codes of gaps; exact for words and for what is dense."""
    for code in CODES:
        found, length = at_density(0.001, 400_000)
        coder = messages(code, found, length)
        room, size = coder.bound(slice(0, length)), len(message_of(coder, length))
        spare = {"words": 1, "rice": 1.1, "elias": 1.25}
        assert size <= room <= spare.get(code, 3.2) * size


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("signs", [True, False])
def test_a_dense_vector_takes_a_bitmap(code, signs):
    length = 1003
    values = np.linspace(1, 1 if signs else 2, length).astype(np.float32)
    coder = messages(code, Sparse(np.arange(length, dtype=np.int32), values), length)
    bitmap = (length + 7) // 8
    longest = HEADER + bitmap + (4 + bitmap if signs else 4 * length)
    assert coder.bound(slice(0, length)) == longest
    assert len(message_of(coder, length)) <= longest


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("density", [0.0003, 0.01, 0.3])
@pytest.mark.parametrize("signs", [True, False])
def test_expected_bytes_are_those_of_entries_at_random(code, density, signs):
    found, length = at_density(density, 1_000_000 if density < 0.1 else 50_000, signs=signs)
    coder = messages(code, found, length)
    assert coder.expected(slice(0, length)) == pytest.approx(len(message_of(coder, length)), rel=0.04)


def test_impossible_numbers_are_refused():
    found = Sparse(np.array([1, 4], np.int32), np.array([0.5, -0.5], np.float32))
    coder = messages("words", found, 8)
    for number in (np.inf, -1.0, 0.0, np.nan):
        message = coder.write(found, 8)
        message[HEADER : HEADER + 4] = np.array([number], np.float32).view(np.uint8)
        with pytest.raises(ValueError, match=r"magnitude|finite"):
            coder.read(message, 8)
    different = coder.write(Sparse(found.indices, np.array([0.5, 1], np.float32)), 8)
    different[-4:] = np.array([np.nan], np.float32).view(np.uint8)
    with pytest.raises(ValueError, match="finite"):
        coder.read(different, 8)
