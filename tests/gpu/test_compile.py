"""Every kernel compiles for every GPU we mean, with no GPU here: by NVRTC, the compiler that CuPy uses."""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from hpcdl.compression.kernels.cuda_launchers import FOLDER
from hpcdl.nn.kernels.cupy import device as sources

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def nvrtc():
    """The library from NVIDIA's wheel ``nvidia-cuda-nvrtc``, None without it."""
    found = importlib.util.find_spec("nvidia")
    folders = found.submodule_search_locations if found else []
    libraries = sorted(path for folder in folders for path in Path(folder).rglob("libnvrtc.so.*"))
    return ctypes.CDLL(libraries[-1]) if libraries else None


@pytest.fixture(scope="module")
def compiler():
    found = nvrtc()
    if found is None:
        pytest.skip("NVRTC is not installed: pip install 'hpcdl[gpu-tests]'")
    return found


COMPRESSORS = {str(path.with_suffix("")) for path in FOLDER.glob("*.cu")}
"""Their arithmetic is in the precision of the gradient, but for conversions to float16."""

SOURCES = sorted(path.stem for path in sources.FOLDER.glob("*.cu"))

PRECISIONS = [(name, dtype) for name in SOURCES for dtype in sources.NUMBERS]
PRECISIONS += [(name, "float16") for name in sorted(COMPRESSORS) if name.endswith("halves")]
PRECISIONS += [
    (name, f"float{n}") for name in sorted(COMPRESSORS) if not name.endswith("halves") for n in (32, 64)
]


@pytest.mark.parametrize(
    ("name", "dtype", "architecture"),
    [(*one, ARCHITECTURES[at % len(ARCHITECTURES)]) for at, one in enumerate(PRECISIONS)],
)
def test_a_source_compiles(name, dtype, architecture, compiler):
    """In every precision, each of which meets every GPU."""
    program = ctypes.c_void_p()
    text, title = sources.text(name).encode(), f"{Path(name).name}.cu".encode()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), text, title, 0, None, None) == 0
    options = [*sources.options(dtype), f"-arch={architecture}", "-Werror=all-warnings"]
    listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = compiler.nvrtcCompileProgram(program, len(options), listed)
    size = ctypes.c_size_t()
    assert compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert compiler.nvrtcGetProgramLog(program, log) == 0
    assert not failed, log.value.decode()
    assert compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    assert size.value > 0


def test_kernels_use_no_barriers_and_no_atomics():
    """Then results do not depend on timing, and the kernels also run on a CPU."""
    assert {"pooling", "batch_norm", "dropout"} <= {*SOURCES}
    assert {"halves", "two_values"} <= {Path(name).name for name in COMPRESSORS}
    for name in {*SOURCES, *COMPRESSORS}:
        assert "__syncthreads" not in sources.text(name)
        assert not re.search(r"\batomic[A-Z]", sources.text(name))
