"""Compressors on the device: numba's bits, and the time of an encoder beside that of a copy of the gradient."""

import statistics
from functools import partial

import numpy as np
from gpu.timing import times

from hpcdl import registry
from hpcdl.compression.parts.protocol import Compression, Layout, to_device, to_host
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Tensor

ERROR = 1e-4
"""Of low-rank products, which libraries add in another order; all else is equal bit by bit."""


def compressors(results, name, tiny):
    device, side = backend(name).device, 100 if tiny else 5000
    tensors = [Tensor("weight", 0, (side, side), decay=True), Tensor("bias", side * side, (7,), decay=False)]
    size = side * side + 7
    values = np.random.default_rng(1).standard_normal(size).astype("float32")
    vector, other = to_device(device, values.copy()), to_device(device, values.copy())
    repetitions = 3 if tiny else 20

    def copy():
        other[:] = vector

    copied = statistics.median(times(copy, repetitions, on_gpu=device is not None))
    for one in registry.names("compression"):
        if not registry.traits("compression", one, Compression).on_device:
            continue
        if results.left() < 10:
            results.put(one, shown="not run: no time left")
            continue
        make = registry.find("compression", one)
        layouts = [Layout(size=size, tensors=tensors, ranks=2, seed=3, device=where) for where in (None, device)]
        host, there = (make(layout) for layout in layouts)
        expected = made(host, values.copy(), None)
        copy()
        found = made(there, other, device)
        exact = found.tobytes() == expected.tobytes()
        near = found.dtype == "float32" and np.linalg.norm(found - expected) <= ERROR * np.linalg.norm(expected)
        work = partial(encoded, there, other, device)
        taken = statistics.median(times(work, repetitions, on_gpu=device is not None))
        shown = f"encoder {taken:.3f} ms, {taken / copied:.1f} copies{'' if exact else ', not bit by bit'}"
        results.put(one, ok=bool(exact or near), encode_ms=taken, copy_ms=copied, shown=shown)


def made(compressor, vector, device):
    """What a compressor makes of a vector, on the host: a message, entries, or its first vector."""
    found = encoded(compressor, vector, device)
    return found if isinstance(found, np.ndarray) else to_host(device, found)


def encoded(compressor, vector, device):
    """See ``made``, but vectors stay on the device, from which transports send them."""
    span = slice(0, len(vector))
    if hasattr(compressor, "rounds"):
        return next(compressor.rounds(span, vector, None, 0))
    if hasattr(compressor, "select"):
        indices, values = compressor.select(span, vector, 0)
        return np.concatenate([indices.view(np.uint8), values.view(np.uint8)])
    wire = np.empty(compressor.bound(span), np.uint8)
    return wire[: compressor.encode(span, vector, wire, 0)]
