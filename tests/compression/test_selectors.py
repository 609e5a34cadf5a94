"""The contract that ``hpcdl check`` checks, for every compressor; selectors and random-k: which entries are sent."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from hpcdl import registry
from hpcdl.aggregation.parts.entries import dense
from hpcdl.commands.parts.contracts import SHAPES, check_compressor, check_conservation, layout
from hpcdl.compression.parts.protocol import Compression, Layout, Sparse
from hpcdl.compression.parts.selection import subset
from hpcdl.compression.sparsification import DGC, RandomK, Threshold, TopK
from hpcdl.training.parts.plan import kind_of

NAMES = [name for name in registry.names("compression") if name != "none"]


def broken(make, traits):
    return [check.subject for check in check_compressor(make, traits) if check.verdict != "ok"]


@pytest.mark.parametrize("name", NAMES)
def test_a_compressor_of_the_package_keeps_its_contract(name):
    assert not broken(registry.find("compression", name), registry.traits("compression", name, Compression))


LENGTH = layout(SHAPES).size
VALUES = some.floats(-(2.0**60), 2.0**60, width=32) | some.floats(-(2.0**-126), 2.0**-126, width=32) | some.just(0)


OF_MESSAGES = [name for name in NAMES if kind_of(registry.find("compression", name)) != "vectors"]


@pytest.mark.parametrize("name", OF_MESSAGES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tensors", [layout(SHAPES).tensors, ()])
@settings(max_examples=12, deadline=None)
@given(vector=arrays("float32", some.integers(0, LENGTH), elements=VALUES, fill=VALUES))
@example(vector=np.empty(0, "float32"))
@example(vector=np.full(1, 1e-45, "float32"))
@example(vector=np.full(1, -3, "float32"))
def test_sent_and_kept_are_the_input(name, tensors, dtype, vector):
    """Of the last entries of the gradient, with denormal numbers and zeros."""
    compressor = registry.find("compression", name)(Layout(size=LENGTH, tensors=tensors, dtype=dtype))
    check_conservation(compressor, slice(LENGTH - len(vector), LENGTH), vector.astype(dtype))


class Tenth(TopK):
    def __init__(self, layout):
        super().__init__(layout, density=0.1)


def changed(change):
    """Return a selector whose indices and values are changed."""

    class Changed(Tenth):
        def select(self, span, vector, step):
            return Sparse(*(change(part).copy() for part in super().select(span, vector, step)))

    return Changed


class Few(Tenth):
    def most(self, span):
        return super().most(span) - 1


class Adding(Tenth):
    """Sends entries that are zero."""

    def select(self, span, vector, step):
        if len(vector) < 3:
            return super().select(span, vector, step)
        vector[:3] -= 1
        return Sparse(np.arange(3, dtype=np.int32), np.ones(3, vector.dtype))


class Random(Tenth):
    """Draws without its seed."""

    def select(self, span, vector, step):
        indices = np.sort(np.random.default_rng().permutation(len(vector))[: self.most(span)]).astype(np.int32)
        values = vector[indices]
        vector[indices] = 0
        return Sparse(indices, values)


KEPT_WRONG = (changed(lambda part: part[:-1]), changed(lambda part: part[::-1]), Few)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        *((make, "what is sent and kept is the input, in messages as long as stated") for make in KEPT_WRONG),
        (Adding, "zeros as declared"),
        (Random, "equal messages again"),
        (Random, "values that are not finite refused"),
    ],
)
def test_a_compressor_that_breaks_its_contract_is_found(make, what):
    assert what in broken(make, Compression())


VECTORS = arrays("float32", some.integers(0, 400), elements=VALUES, fill=VALUES)
"""With denormal numbers and zeros."""

SELECTORS = {
    "threshold": lambda layout: Threshold(layout, tau=0.25),
    "threshold, adaptive": lambda layout: Threshold(layout, density=0.05),
    "top_k": lambda layout: TopK(layout, density=0.05),
    "dgc": lambda layout: DGC(layout, density=0.05, momentum=0.0),
}


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("length", [1, 63, 64, 10_000])
def test_values_that_are_not_finite_are_named(name, bad, length):
    """The first of them; the compressor's state stays as it is."""
    selector = SELECTORS[name](Layout(size=100 + length))
    vector = np.ones(length, "float32")
    place = length * 2 // 3
    vector[place:] = bad
    state = {name: one.copy() for name, one in selector.state.items()}
    expected = f"^element {100 + place} of the flat gradient is {bad}$"
    with pytest.raises(FloatingPointError, match=expected):
        selector.select(slice(100, 100 + length), vector, 0)
    for one, before in state.items():
        assert (selector.state[one] == before).all()


@settings(max_examples=100, deadline=None)
@given(vector=VECTORS, tau=some.sampled_from([0.25, 1e-40, 3.0]))
def test_threshold_sends_exactly_tau_for_entries_beyond_it(vector, tau):
    """Once per step, as often as it takes (Strom 2015, section 3)."""
    tau = np.float32(tau)
    selector = Threshold(Layout(size=len(vector)), tau=float(tau))
    kept = vector.copy()
    for step in range(3):
        before = kept.copy()
        found = selector.select(slice(0, len(vector)), kept, step)
        assert found.indices.tolist() == np.flatnonzero(np.abs(before) > tau).tolist()
        assert (found.values == np.where(before[found.indices] > 0, tau, -tau)).all()
        assert (kept[found.indices] == before[found.indices] - found.values).all()


def test_a_fixed_tau_decays():
    selector = Threshold(Layout(size=2), tau=1.0, decay=0.5)
    steps = (0, 1, 2, 100_000)
    taus = [selector.select(slice(0, 2), np.array([9, -9], "float32"), step).values[0] for step in steps]
    assert taus == [1, 0.5, 0.25, np.finfo("float32").smallest_subnormal]


@pytest.mark.parametrize("density", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("shape", ["normal", "student"])
def test_an_adaptive_tau_sends_the_target_density(density, shape):
    random = np.random.default_rng(5)
    length = 2_000_000
    vector = random.standard_normal(length) if shape == "normal" else random.standard_t(3, length)
    span, residual, counts = slice(0, length), np.zeros(length, "float32"), []
    selector = Threshold(Layout(size=length), density=density)
    for step in range(5):
        residual += vector.astype("float32")
        counts.append(len(selector.select(span, residual, step).indices))
    assert np.mean(counts) == pytest.approx(density * length, rel=0.35)
    assert selector.expected(span) == round(density * length)


def check_top_k(vector, share):
    """Compare with a sort; of equal magnitudes the first are sent."""
    k = max(1, round(share * len(vector)))
    order = np.argsort(-np.abs(vector), kind="stable")[:k]
    expected = np.sort(order[vector[order] != 0])
    found = TopK(Layout(size=len(vector)), density=share).select(slice(0, len(vector)), vector.copy(), 0)
    assert found.indices.tolist() == expected.tolist()
    assert (found.values == vector[expected]).all()


@settings(max_examples=100, deadline=None)
@given(vector=VECTORS.filter(len), share=some.sampled_from([0.001, 0.1, 0.5, 1]))
def test_top_k_is_that_of_a_sort(vector, share):
    check_top_k(vector, share)


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "sorted", "late"])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3])
def test_top_k_of_a_long_vector_is_that_of_a_sort(kind, share):
    """Where the sample is a small part, and sometimes a misleading one."""
    random = np.random.default_rng(1)
    vector = random.standard_normal(700_001).astype("float32")
    if kind == "ties":
        vector = np.round(vector)
    elif kind == "zeros":
        vector[random.random(len(vector)) < 0.9999] = 0
    elif kind == "sorted":
        vector.sort()
    elif kind == "late":
        vector[:-100] = np.copysign(np.float32(1e-3), vector[:-100])
    check_top_k(vector, share)


def paper(gradients, momentum, clipping, ranks, chosen):
    """Deep Gradient Compression, algorithm 4: u and v after the steps; entries are those that were ``chosen``."""
    u, v = np.zeros((2, gradients.shape[1]))
    sent = []
    for gradient, mask in zip(gradients, chosen, strict=True):
        norm = np.sqrt((gradient**2).sum())
        clipped = gradient * min(1, clipping * ranks**-0.5 / norm)
        u = momentum * u + clipped
        v = v + u
        sent.append(np.where(mask, v, 0))
        u, v = np.where(mask, 0, u), np.where(mask, 0, v)
    return sent, u, v


def test_dgc_is_the_paper_s_algorithm():
    random = np.random.default_rng(7)
    gradients = random.standard_normal((6, 3000)) * np.array([[0.01, 1, 1, 5, 1, 1]]).T
    length, ranks = gradients.shape[1], 4
    kept = Layout(size=length, dtype="float64", ranks=ranks)
    selector = DGC(kept, density=0.01, momentum=0.9, clipping=30.0)
    masks, sent = [], []
    for step, gradient in enumerate(gradients):
        vector = gradient.copy()
        found = selector.select(slice(0, length), vector, step)
        sent.append(dense(found, length))
        masks.append(sent[-1] != 0)
        assert len(found.indices) == 30
        assert np.abs(vector).max() <= np.abs(found.values).min()
    expected, u, v = paper(gradients, 0.9, 30.0, ranks, masks)
    np.testing.assert_allclose(sent, expected, rtol=1e-12)
    np.testing.assert_allclose(selector.state["velocity"], u, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(selector.state["accumulated"], v, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(vector, v, rtol=1e-12, atol=1e-14)


def test_dgc_becomes_sparse_in_the_paper_s_stages():
    """75, 93.75, 98.4, 99.6, then 99.9 % (Lin 2018, section 3.3)."""
    selector = DGC(Layout(size=100_000), sparsity_warmup_steps=8)
    random = np.random.default_rng(9)
    sent = []
    for step in range(9):
        vector = random.standard_normal(100_000).astype("float32")
        sent.append(len(selector.select(slice(0, 100_000), vector, step).indices))
        assert sent[-1] <= selector.most(slice(0, 100_000))
    ideal = [25_000, 25_000, 6250, 6250, 1562, 1562, 391, 391, 100]
    for count, target in zip(sent, ideal, strict=True):
        assert 0.5 * target < count <= target
    assert selector.expected(slice(0, 100_000)) == 100


def summed(compressors, vectors, residuals, span, step):
    """Carry out the rounds of all ranks."""
    rounds = [
        compressor.rounds(span, vector, residual, step)
        for compressor, vector, residual in zip(compressors, vectors, residuals, strict=True)
    ]
    for pieces in zip(*rounds, strict=True):
        total = np.sum(pieces, axis=0)
        for piece in pieces:
            piece[:] = total


@pytest.mark.parametrize("length", [1, 2, 99, 5000])
@pytest.mark.parametrize("density", [0.001, 0.3, 0.8, 1])
def test_random_k_sums_the_same_entries_on_all_ranks(length, density):
    random = np.random.default_rng(length)
    inputs = random.standard_normal((3, length)).astype("float32")
    vectors, residuals = inputs.copy(), np.empty_like(inputs)
    compressors = [RandomK(Layout(size=length, rank=rank, ranks=3), density=density) for rank in range(3)]
    span = slice(0, length)
    summed(compressors, vectors, residuals, span, 4)
    k = max(1, round(density * length))
    assert compressors[0].lengths(span) == [(k, "float32")]
    assert np.count_nonzero(vectors[0]) == k
    assert (vectors == vectors[0]).all()
    np.testing.assert_allclose(residuals.sum(0) + vectors[0], inputs.sum(0), atol=1e-5)
    again = inputs.copy()
    summed(compressors, again, residuals, span, 5)
    assert k == length or k < 5 or (again != vectors).any()


def test_random_k_without_error_feedback_is_unbiased():
    """Over 10,000 draws, within its variance (n/k - 1) x^2."""
    vector = np.array([1, -2, 0.5, 4, 0, 3, -1, 2, 2, 1], "float32")
    compressor = RandomK(Layout(size=10, seed=3), density=0.3)
    draws = np.tile(vector, (10_000, 1))
    for step, draw in enumerate(draws):
        summed([compressor], [draw], [None], slice(0, 10), step)
    deviation = np.abs(vector) * np.sqrt(10 / 3 - 1) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - vector) <= 4 * deviation + 1e-6).all()


def test_subsets_have_distinct_positions_in_order():
    for count, length in [(0, 0), (0, 5), (1, 1), (3, 64), (64, 65), (500, 1000), (999, 1000)]:
        for seed in range(20):
            found = subset(count, length, seed)
            assert len(found) == count
            assert (np.diff(found) > 0).all()
            assert count == 0 or (found[0] >= 0 and found[-1] < length)


def test_all_subsets_are_equally_likely():
    """Chi-squared over the ten pairs of five."""
    pairs = [tuple(subset(2, 5, seed).tolist()) for seed in range(10_000)]
    counts = np.array([pairs.count(pair) for pair in set(pairs)])
    assert len(counts) == 10
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.9  # 0.1 % quantile at nine degrees of freedom
