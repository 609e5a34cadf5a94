"""Optional packages, which are imported where they are used, and the extra of hpcdl that installs each."""

from typing import Final

REPORT: Final = "pip install 'hpcdl[report]'"
CUDA: Final = "pip install 'hpcdl[cuda13]', or 'hpcdl[cuda12]' for a CUDA 12 driver"
OPTIONAL: Final = {
    "jinja2": ("Jinja2", REPORT),
    "matplotlib": ("matplotlib", REPORT),
    "perfetto": ("perfetto", REPORT),
    "google": ("protobuf", REPORT),
    "rich": ("Rich", REPORT),
    "PIL": ("Pillow", "pip install 'hpcdl[images]'"),
    "argcomplete": ("argcomplete", "pip install 'hpcdl[completion]'"),
    "pynvml": ("nvidia-ml-py", "pip install 'hpcdl[cluster]'"),
    "cupy": ("CuPy", CUDA),
    "cudnn": ("cuDNN's frontend", CUDA),
}
"""Name and remedy of each package, by the module that is imported."""


def missing(module: str | None, why: object = "is not installed") -> str:
    """Return in one line which optional package lacks, and the remedy; empty if it is no optional one."""
    name, remedy = OPTIONAL.get(str(module).partition(".")[0], ("", ""))
    return name and f"{name} {why}: {remedy}"
