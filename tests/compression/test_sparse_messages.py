"""Messages of selected entries: any entries come back bit for bit, within the bound; corrupt ones are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.compression.parts.protocol import Layout, Sparse
from hpcdl.compression.parts.selection import HEADER, SparseMessages

CODES = registry.names("codes")


class Chosen:
    """A selector of given entries."""

    def __init__(self, found, most, *, signs):
        self.found, self.signs, self.state = found, signs, {}
        self._most = most

    def most(self, span):
        return self._most

    def expected(self, span):
        return self._most

    def select(self, span, vector, step):
        return self.found


def messages(code, found, length, dtype="float32", most=None):
    magnitudes = np.abs(found.values)
    signs = bool(len(magnitudes)) and bool((magnitudes == magnitudes[0]).all())
    chosen = Chosen(found, len(found.indices) if most is None else most, signs=signs)
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


def encoded(messages, length):
    """The message, from a buffer of exactly the bound with a guard behind it."""
    span = slice(0, length)
    room = messages.bound(span)
    wire = np.full(room + 16, 171, np.uint8)
    size = messages.encode(span, np.zeros(length, "float32"), wire[:room], 0)
    assert size <= room
    assert (wire[room:] == 171).all()
    return wire[:size].copy()


@pytest.mark.parametrize("code", CODES)
@given(selections(), st.integers(0, 50))
@settings(deadline=None, max_examples=40)
def test_entries_come_back_bit_for_bit(code, selection, more):
    length, found, dtype = selection
    most = min(length, len(found.indices) + more)
    message = encoded(messages(code, found, length, dtype, most), length)
    back = messages(code, found, length, dtype).read(message, length)
    assert back.indices.tolist() == found.indices.tolist()
    assert back.values.tobytes() == found.values.tobytes()


@pytest.mark.parametrize("code", CODES)
@given(selections(), st.data())
@settings(deadline=None, max_examples=40)
def test_a_message_cut_off_lengthened_or_of_another_length_is_refused(code, selection, data):
    length, found, dtype = selection
    coder = messages(code, found, length, dtype)
    message = encoded(coder, length)
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
        message = encoded(messages(code, found, length, dtype), length)
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
    """A third of his words; both counted on whole messages."""
    found, length = at_density(0.0036)
    rice, words = (messages(code, found, length) for code in ("rice", "words"))
    for coder in (rice, words):
        encoded(coder, length)
        assert coder.entries == len(found.indices)
    bits = 8 * rice.wire_bytes / rice.entries
    assert 10.5 < bits <= 10.8
    assert words.wire_bytes == HEADER + 4 + 4 * words.entries
    assert words.wire_bytes / rice.wire_bytes == pytest.approx(3.0, abs=0.02)


def test_bounds_are_tight_for_entries_at_random():
    """Within a tenth for codes of gaps; exact for words and for what is dense."""
    for code in CODES:
        found, length = at_density(0.001, 400_000)
        coder = messages(code, found, length)
        room, size = coder.bound(slice(0, length)), len(encoded(coder, length))
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
    assert len(encoded(coder, length)) <= longest


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("density", [0.0003, 0.01, 0.3])
@pytest.mark.parametrize("signs", [True, False])
def test_expected_bytes_are_those_of_entries_at_random(code, density, signs):
    found, length = at_density(density, 1_000_000 if density < 0.1 else 50_000, signs=signs)
    coder = messages(code, found, length)
    assert coder.expected(slice(0, length)) == pytest.approx(len(encoded(coder, length)), rel=0.04)


def test_impossible_numbers_are_refused():
    found = Sparse(np.array([1, 4], np.int32), np.array([0.5, -0.5], np.float32))
    coder = messages("words", found, 8)
    for position, number in ((HEADER, np.inf), (HEADER, -1.0), (HEADER, 0.0), (HEADER, np.nan)):
        message = coder.write(found, 8)
        message[position : position + 4] = np.array([number], np.float32).view(np.uint8)
        with pytest.raises(ValueError, match=r"magnitude|finite"):
            coder.read(message, 8)
    different = coder.write(Sparse(found.indices, np.array([0.5, 1], np.float32)), 8)
    different[-4:] = np.array([np.nan], np.float32).view(np.uint8)
    with pytest.raises(ValueError, match="finite"):
        coder.read(different, 8)
