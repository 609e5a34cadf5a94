"""Which aggregations are held to what: all that the folder offers, so that a new file is tested as it is."""

from hpcdl import registry
from hpcdl.aggregation.collectives import COLLECTIVES, OF_A_LIBRARY, offered, operand, operands_apart, schemes

SCHEMES = [name for name in registry.names("aggregation") if name not in {"none", "nccl"}]
"""All that sum; ``none`` says that it does not, and ``nccl`` sums on GPUs only."""

SEGMENTED = [
    name for name in SCHEMES if "segment_bytes" in registry.settings_of(registry.find("aggregation", name))
]
"""Those that cut vectors into segments."""

UNCOSTED = [*OF_A_LIBRARY, "auto"]
"""Those that state no cost: a library's own, and the one that costs what it chooses."""


def scheme(name):
    return registry.find("aggregation", name)


OTHERS = [
    (collective, name) for collective in COLLECTIVES if collective != "allreduce" for name in schemes(collective)
]
"""What schemes offer besides their allreduce."""


ON_HOSTS = [
    (collective, name)
    for collective in COLLECTIVES
    for name in schemes(collective)
    if name in OF_A_LIBRARY and name != "nccl"
]
"""What the MPI library offers."""


def called(collective, name, comm, buffer, **settings):
    """A scheme's collective on a whole vector."""
    return offered(collective, name)(comm, operand(collective, buffer, comm.size), **settings)


def called_apart(collective, name, comm, given, result):
    """A library's collective that reads one vector and writes another."""
    return offered(collective, name)(comm, operands_apart(collective, given, result, comm.size))
