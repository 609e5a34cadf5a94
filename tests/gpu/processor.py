"""A device without a GPU: the kernels of ``cuda/`` compiled by g++ and run thread after thread on numpy's arrays.

Everything of the backend runs but cuDNN, cuBLAS and the GPU itself: the kernels' arithmetic, how they are launched,
and all of the ops' Python.
"""

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from contract.device import OnDevice, inside

from hpcdl.nn.geometry import master, storage_dtype
from hpcdl.nn.kernels.cupy import device as sources
from hpcdl.nn.kernels.cupy.device import grid_over

SHIM = Path(__file__).with_name("shim.h")
KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
GXX = shutil.which("g++")
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wl,-Bsymbolic"]
FLAGS += ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
BUILT = Path(tempfile.gettempdir()) / "hpcdl-kernels-on-a-processor"


def parameters(text):
    """The kernels of a source: name to the types of its parameters."""
    return {
        name: [parameter.rsplit(None, 1)[0].strip() for parameter in listed.split(",")]
        for name, listed in KERNEL.findall(text)
    }


def runner(name, types):
    """A function that runs all threads of all blocks of a kernel."""
    listed = ", ".join(f"{kind} p{i}" for i, kind in enumerate(types))
    passed = ", ".join(f"p{i}" for i in range(len(types)))
    return f"""
extern "C" void run_{name}(unsigned blocks, unsigned x, unsigned y, {listed}) {{
    gridDim.x = blocks; blockDim.x = x; blockDim.y = y;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.y = 0; threadIdx.y < y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < x; ++threadIdx.x) {name}({passed});
}}"""


@functools.cache
def library(source, dtype):
    text = sources.text(source)
    whole = SHIM.read_text() + text + "".join(runner(*kernel) for kernel in parameters(text).items())
    digest = hashlib.sha256((whole + dtype + " ".join(FLAGS)).encode()).hexdigest()[:16]
    built = BUILT / f"{Path(source).name}-{dtype}-{digest}.so"
    if not built.exists():
        BUILT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            code, fresh = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            code.write_text(whole)
            subprocess.run([GXX, *FLAGS, *sources.options(dtype)[1:], code, "-o", fresh], check=True)
            fresh.rename(built)
    return ctypes.CDLL(built)


def as_argument(kind, value):
    """What a launch was given, as C takes it; wrong kinds are found here."""
    if kind.endswith("*"):
        assert value is None or isinstance(value, np.ndarray), (kind, value)
        return ctypes.c_void_p(None if value is None else value.ctypes.data)
    if kind == "double":
        assert isinstance(value, float), (kind, value)
        return ctypes.c_double(value)
    assert kind == "Index"
    assert isinstance(value, int), (kind, value)
    return ctypes.c_longlong(value)


ELEMENT = {"Index": "int64", "int": "int32", "long long": "int64", "double": "float64"}
ELEMENT |= {"unsigned int": "uint32", "unsigned char": "uint8"}


def check_element(kind, value, dtype):
    """Whether an array holds what the kernel takes it for."""
    bare = kind.replace("const ", "").rstrip("* ")
    if value is None or bare == "void":
        return
    expected = {"T": storage_dtype(dtype), "A": master(dtype)}.get(bare) or ELEMENT[bare]
    assert value.dtype == expected, (kind, value.dtype, dtype)
    assert value.flags.c_contiguous


class Processor:
    """See :class:`hpcdl.nn.kernels.cupy.device.Device`."""

    deterministic = True
    has_cudnn = False

    def __init__(self, *, records_products=True):
        self._tape = None
        self._records_products = records_products

    def empty(self, shape, dtype):
        array = aligned(shape, dtype)
        array.view(np.uint8).reshape(-1)[...] = 0xFF  # NaN in every precision: what is read before it was written
        return array

    def zeros(self, shape, dtype):
        array = aligned(shape, dtype)
        array[...] = 0
        return array

    def asarray(self, array):
        copy = aligned(array.shape, array.dtype)
        copy[...] = array
        return copy

    def to_host(self, array):
        return array.copy()

    def address(self, array):
        return array.ctypes.data

    def launch(self, source, kernel, dtype, grid, *arguments):
        loaded = library(source, dtype)
        types = parameters(sources.text(source))[kernel]
        assert len(types) == len(arguments), (kernel, types, arguments)
        for kind, value in zip(types, arguments, strict=True):
            if kind.endswith("*"):
                check_element(kind, value, dtype)
        grid = grid_over(grid) if isinstance(grid, int) else grid
        assert grid.x * grid.y <= 1024
        assert grid.blocks >= 1
        sizes = (ctypes.c_uint(size) for size in grid)
        converted = [as_argument(kind, value) for kind, value in zip(types, arguments, strict=True)]
        self._do(functools.partial(getattr(loaded, f"run_{kernel}"), *sizes, *converted), arguments)

    def multiply(self, a, b, out, dtype, *, transpose_a=False, transpose_b=False):
        if self._tape is not None and not self._records_products:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        assert a.dtype == b.dtype == storage_dtype(dtype)
        assert out.dtype in (storage_dtype(dtype), master(dtype))
        assert all(matrix.strides[-1] == matrix.itemsize or matrix.shape[-1] <= 1 for matrix in (a, b, out))

        def work():
            left = wide(a.swapaxes(-1, -2) if transpose_a else a, dtype)
            right = wide(b.swapaxes(-1, -2) if transpose_b else b, dtype)
            product = left @ right
            out[...] = narrow(product, dtype) if out.dtype == storage_dtype(dtype) else product

        self._do(work, (a, b, out))

    def batch_norm_plan(self, what, geometry, batch):
        return None

    def pooled(self, work):
        return work()

    def capture(self, work):
        """Note all that is launched; numpy's own operations are not launches, so ops must do without."""
        tape = self._tape = []
        try:
            answer = work()
        finally:
            self._tape = None

        def start():
            for do, _ in tape:
                do()

        return start, answer

    def _do(self, work, arrays):
        if self._tape is not None:
            self._tape.append((work, arrays))
        work()


def aligned(shape, dtype):
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    memory = np.empty(size + 16, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + size].view(kind).reshape(shape)


def wide(array, dtype):
    """As numbers numpy knows."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(master(dtype))


def narrow(array, dtype):
    """As stored, rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Strict(Processor):
    """A processor whose arrays are :class:`OnDevice`."""

    def empty(self, shape, dtype):
        return OnDevice(super().empty(shape, dtype))

    def zeros(self, shape, dtype):
        return OnDevice(super().zeros(shape, dtype))

    def asarray(self, array):
        assert type(array) is np.ndarray
        return OnDevice(super().asarray(array))

    def to_host(self, array):
        return array.held.copy()

    def launch(self, source, kernel, dtype, grid, *arguments):
        super().launch(source, kernel, dtype, grid, *map(inside, arguments))
