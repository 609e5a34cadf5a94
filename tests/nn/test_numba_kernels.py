"""Compiled kernels: register tiles, Winograd transforms, threads, compilation before timing."""

import importlib
import itertools
import pkgutil
from types import SimpleNamespace

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from hpcdl.nn.backend import NormVectors, Weights, backend, limit, parallel_ranges, threads
from hpcdl.nn.geometry import BatchNormGeometry, WindowGeometry
from hpcdl.nn.kernels import numba as package
from hpcdl.nn.kernels.numba import parts
from hpcdl.nn.kernels.numba.convolution import Convolution
from hpcdl.nn.kernels.numba.memory_bound import BatchNorm
from hpcdl.nn.kernels.numba.toom_cook import SIZE, matrices
from hpcdl.nn.kernels.numba.vectors import REGISTER_BYTES, ROWS, VECTORS, tile
from hpcdl.nn.kernels.numba.winograd import Winograd
from hpcdl.nn.kernels.numpy.windows import Im2col
from hpcdl.nn.replica import Replica
from hpcdl.run.job import Job


def test_a_tile_of_any_height_and_width():
    """All branches: full registers, a masked second or first one; nothing is written outside."""
    for dtype in ["float32", "float64"]:
        random, zero = np.random.default_rng(0), np.zeros(1, dtype)[0]
        count = REGISTER_BYTES // zero.itemsize
        widths = {1, count - 1, count, count + 1, VECTORS * count - 1, VECTORS * count}
        for rows, columns in itertools.product(range(1, ROWS + 1), widths):
            outer, inner = 2, 5
            a = random.standard_normal((rows, outer, inner)).astype(dtype)
            b = random.standard_normal((outer, inner, columns)).astype(dtype)
            start = random.standard_normal(columns).astype(dtype)
            c = np.full((rows + 2, columns + 3), 7, dtype)
            left, right = (a.ctypes.data, outer * inner, inner, 1), (b.ctypes.data, inner * columns, columns)
            into = (c[1:, 1:].ctypes.data, columns + 3)
            tile((rows, columns, outer, inner), left, right, (start.ctypes.data, 0), into, zero)
            expected = np.maximum(np.einsum("iok,okj->ij", a, b) + start, 0)
            np.testing.assert_allclose(c[1 : rows + 1, 1 : columns + 1], expected, atol=1e-5)
            c[1 : rows + 1, 1 : columns + 1] = 7
            assert (c == 7).all()


def test_interpolation_is_correlation():
    """y = A^T [(G g) * (B^T d)] for any g and d, so for all pairs of unit vectors."""
    for taps in [3, 5]:
        a, g, b = (np.array(matrix) for matrix in matrices(taps))
        assert a.shape == (7 - taps, SIZE)
        for i, j in itertools.product(range(taps), range(SIZE)):
            found = a @ (g[:, i] * b[:, j])
            expected = [float(j == k + i) for k in range(7 - taps)]
            np.testing.assert_allclose(found, expected, atol=1e-14)


def geometry(image, filters, taps, padding=0, stride=1, groups=1, *, dtype="float64", relu=False):
    rows, columns = ((image[i] + 2 * padding - taps) // stride + 1 for i in range(2))
    output = (rows, columns, filters)
    return WindowGeometry(image, output, (taps, taps), (stride, stride), (padding, padding), dtype, groups, relu)


def run(op, places, images=3):
    random, filters = np.random.default_rng(1), places.output[2]
    shapes = (images, *places.image), (filters, *places.kernel, places.image[2] // places.groups), (filters,)
    x, weight, bias, dy = (
        random.standard_normal(shape).astype(places.dtype) for shape in (*shapes, (images, *places.output))
    )
    weights = Weights(weight, bias, np.empty_like(weight), np.empty_like(bias))
    y = op.forward(x, weights).copy()
    dx = op.backward(dy, weights, needs_dx=True)
    return y, weights.dweight, weights.dbias, dx.copy()


WINOGRAD = {
    "whole tiles": geometry((8, 8, 16), 16, 3, 1),
    "tiles that stick out": geometry((7, 10, 24), 40, 3, 1),
    "no padding": geometry((9, 5, 17), 33, 3),
    "one tile": geometry((2, 3, 16), 16, 3, 1),
    "much padding": geometry((5, 4, 16), 20, 3, 2),
    "groups": geometry((6, 7, 48), 64, 3, 1, groups=2),
    "5x5": geometry((8, 11, 20), 50, 5, 2),
    "5x5, groups, no padding": geometry((6, 9, 32), 34, 5, groups=2),
    "relu": geometry((7, 6, 16), 18, 3, 1, relu=True),
}


def test_winograd_is_convolution():
    for places in WINOGRAD.values():
        assert Winograd.suits(places)
        reference = backend("numpy").convolution(places)
        for ours, theirs in zip(run(Winograd(places), places), run(reference, places), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)


def test_winograd_rounding_errors_are_small():
    """In float32 with 128 channels: below 3e-6 of the norm."""
    for taps in [3, 5]:
        places = geometry((12, 12, 128), 64, taps, taps // 2, dtype="float32")
        exact = geometry((12, 12, 128), 64, taps, taps // 2)
        for ours, theirs in zip(run(Winograd(places), places), run(Im2col(exact), exact), strict=True):
            assert np.linalg.norm(ours - theirs) < 3e-6 * np.linalg.norm(theirs)


PARTED = {
    "winograd": (Winograd, geometry((6, 7, 48), 64, 3, 1, groups=2, dtype="float32")),
    "winograd, rows": (Winograd, geometry((23, 9, 16), 16, 5, 2, dtype="float32")),
    "direct": (Convolution, geometry((9, 8, 12), 10, 3, 1, 2, 2, dtype="float32", relu=True)),
    "three channels": (Convolution, geometry((12, 13, 3), 32, 5, 2, 2, dtype="float32")),
    "one tap": (Convolution, geometry((7, 6, 20), 70, 1, dtype="float32", relu=True)),
}
"""In one type: each kernel of several threads takes numba seconds to compile."""


@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_threads_change_nothing_but_the_order_of_sums(name, count, monkeypatch):
    """Also for one image, which rows or filters are divided of; every run adds in the same order."""
    kind, places = PARTED[name]
    monkeypatch.setattr(parts, "MIN_OPERATIONS", 1)
    for images in (1, 5):
        alone = run(kind(places), places, images)
        with threads(count):
            together, again = (run(kind(places), places, images) for _ in range(2))
        for ours, theirs, same in zip(together, alone, again, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
            np.testing.assert_array_equal(ours, same)


def test_one_image_is_enough_for_several_threads(monkeypatch):
    """Before, threads had images, and all but one slept."""
    used = []
    monkeypatch.setattr(parts.numba, "set_num_threads", used.append)
    window = geometry((30, 30, 64), 64, 3, 1, dtype="float32")
    pool = WindowGeometry((60, 60, 64), (58, 58, 64), (3, 3), (1, 1), (0, 0), "float32")
    with threads(2):
        run(Winograd(window), window, images=1)
        assert len(used) >= 3
        for taps, padding, stride in ((1, 0, 1), (3, 1, 2)):
            places = geometry((30, 30, 64), 64, taps, padding, stride, dtype="float32")
            used.clear()
            run(Convolution(places), places, images=1)
            assert used == [2, 2]
        used.clear()
        op = backend("numba").max_pooling(pool)
        op.backward(op.forward(np.ones((1, *pool.image), np.float32)))
        assert used == [2, 2]


def test_parts_of_lines_or_of_filters_cost_least():
    """Many pixels and few weights: lines; few pixels and many weights: filters."""
    assert parts.grid(4, 224, 4, weights=1 << 10, pixels=1 << 20, products=1 << 26) == (4, 1)
    assert parts.grid(4, 14, 24, weights=1 << 20, pixels=1 << 16, products=1 << 26) == (1, 4)
    assert parts.grid(4, 1, 24, weights=1 << 10, pixels=1 << 20, products=1 << 26) == (1, 4)


def test_parallel_ranges_cover_everything_in_order():
    with threads(4):
        for count in (0, 1, 3, 4, 17):
            bounds = parallel_ranges(count, lambda i, j: (i, j), elements=1 << 25)
            assert [i for part in bounds for i in range(*part)] == list(range(count))
        with pytest.raises(ZeroDivisionError):
            parallel_ranges(8, lambda i, _: 1 // (6 - i), elements=1 << 25)
    assert parallel_ranges(9, lambda i, j: (i, j), elements=1 << 25) == [(0, 9)]


def test_variance_with_a_large_mean():
    """One pass over memory is exact for a mean ten thousand times the deviation."""
    random = np.random.default_rng(0)
    x = (1e4 + random.standard_normal((8, 20, 20, 5))).astype(np.float32)
    mean, variance = np.zeros(5, np.float32), np.zeros(5, np.float32)
    op = BatchNorm(BatchNormGeometry((20, 20, 5), 1e-5, 0.0, "float32"))
    ones, zeros = np.ones(5, np.float32), np.zeros(5, np.float32)
    op.forward(x, None, NormVectors(ones, zeros, mean, variance, ones, zeros), train=True)
    exact = x.astype(np.float64).reshape(-1, 5)
    np.testing.assert_allclose(mean, exact.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(variance, exact.var(axis=0, ddof=1), rtol=1e-5)


def compiled():
    names = [f"{package.__name__}.{entry.name}" for entry in pkgutil.iter_modules(package.__path__)]
    things = [thing for name in names for thing in vars(importlib.import_module(name)).values()]
    kernels = [(thing.py_func, thing) for thing in things if isinstance(thing, Dispatcher)]
    return {(of.__module__, of.__name__): len(thing.signatures) for of, thing in kernels}


ON_A_GRID = [pytest.param(*one, marks=pytest.mark.grid) for one in (("float32", 1), ("float64", 2))]


@pytest.mark.parametrize(("dtype", "count"), [("float32", 2), ("float64", 1), *ON_A_GRID])
def test_after_preparation_nothing_is_compiled(dtype, count, zoo, batch, step, monkeypatch):
    """Otherwise the first step would take half a minute."""
    kernels = backend("numba")
    with threads(count):
        kernels.prepare(dtype)
        monkeypatch.setattr(parts, "MIN_OPERATIONS", 1)
        before = compiled()
        assert len(before) > 20
        replica = Replica(zoo(), (9, 8, 3), backend=kernels, dtype=dtype)
        images, labels = batch(3, dtype=dtype)
        step(replica, images, labels, 1.0)
        replica.predict(images)
        for places in WINOGRAD.values():
            op = kernels.convolution(geometry(places.image, places.output[2], places.kernel[0], dtype=dtype))
            weight = np.ones((places.output[2], *places.kernel, places.image[2]), dtype)
            weights = Weights(weight, None, np.empty_like(weight), None)
            op.backward(op.forward(np.ones((1, *places.image), dtype), weights), weights, needs_dx=False)
        assert compiled() == before


def test_kernels_are_prepared_with_the_threads_of_each_case(monkeypatch):
    """Loops over threads are kernels of their own, which a first step would compile."""
    job, seen = Job.__new__(Job), []
    job._prepared, job._leads_node = set(), True
    job.world = SimpleNamespace(sleeping_barrier=lambda: None, library=SimpleNamespace(Barrier=lambda: None))
    ready = SimpleNamespace(prepare=lambda dtype: seen.append((dtype, limit())), announcement=None)
    monkeypatch.setattr("hpcdl.run.job.backend", lambda _name: ready)
    setting = {"backend": SimpleNamespace(name="numba", settings={}), "dtype": "float32"}.get
    for count in (1, 2, 2):
        job.prepare(SimpleNamespace(setting=setting, spec=SimpleNamespace(threads=count)), print)
    assert seen == [("float32", 1), ("float32", 2)]
