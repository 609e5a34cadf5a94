"""Which aggregations are held to what: all that the folder offers, so that a new file is tested as it is."""

from hpcdl import registry

SCHEMES = [name for name in registry.names("aggregation") if name not in {"none", "nccl"}]
"""All that sum; ``none`` says that it does not, and ``nccl`` sums on GPUs only."""


def scheme(name):
    return registry.find("aggregation", name)
