"""Which aggregations are held to what: all that the folder offers, so that a new file is tested as it is."""

from hpcdl import registry

SCHEMES = [name for name in registry.names("aggregation") if name not in {"none", "nccl"}]
"""All that sum; ``none`` says that it does not, and ``nccl`` sums on GPUs only."""

SEGMENTED = [
    name for name in SCHEMES if "segment_bytes" in registry.settings_of(registry.find("aggregation", name))
]
"""Those that cut vectors into segments."""

OF_A_LIBRARY = [name for name in registry.names("aggregation") if name.startswith("native") or name == "nccl"]
"""A library's own, which state no cost."""


def scheme(name):
    return registry.find("aggregation", name)
