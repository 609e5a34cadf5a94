"""Every compressor of the package keeps the contract that ``hpcdl check`` checks; others that lose something do not."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from hpcdl import registry
from hpcdl.commands.parts.contracts import SHAPES, check_compressor, check_conservation, layout
from hpcdl.compression.parts.protocol import Compression, Layout, Sparse
from hpcdl.compression.sparsification import TopK
from hpcdl.training.parts.compressed.plan import kind_of

NAMES = [name for name in registry.names("compression") if name != "none"]


def traits_of(name):
    return registry.traits("compression", name, Compression)


def broken(make, traits):
    return [check.subject for check in check_compressor(make, traits) if check.verdict != "ok"]


@pytest.mark.parametrize("name", NAMES)
def test_a_compressor_of_the_package_keeps_its_contract(name):
    assert not broken(registry.find("compression", name), traits_of(name))


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


class Losing(Tenth):
    """Forgets its last entry."""

    def select(self, span, vector, step):
        entries = super().select(span, vector, step)
        return Sparse(entries.indices[:-1], entries.values[:-1])


class Backwards(Tenth):
    def select(self, span, vector, step):
        entries = super().select(span, vector, step)
        return Sparse(entries.indices[::-1].copy(), entries.values[::-1].copy())


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


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (Losing, "what is sent and kept is the input, in messages as long as stated"),
        (Backwards, "what is sent and kept is the input, in messages as long as stated"),
        (Few, "what is sent and kept is the input, in messages as long as stated"),
        (Adding, "zeros as declared"),
        (Random, "equal messages again"),
        (Random, "values that are not finite refused"),
    ],
)
def test_a_compressor_that_breaks_its_contract_is_found(make, what):
    assert what in broken(make, Compression())
