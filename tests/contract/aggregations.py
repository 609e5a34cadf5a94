"""Lists of aggregation schemes for the tests, read from the folder, so that a new file is tested."""

from hpcdl import registry
from hpcdl.aggregation.parts.traits import ONE_VECTOR, Aggregation, offered, operand, out_of_place_operand, schemes

TRAITS = {name: registry.traits("aggregation", name, Aggregation) for name in registry.names("aggregation")}

SCHEMES = [name for name, one in TRAITS.items() if one.sums and one.memory != "device" and not one.sparse]
"""Schemes that sum whole vectors in host memory."""

SPARSE = [name for name, one in TRAITS.items() if one.sparse]
"""Schemes that sum entries."""

NATIVE = [name for name, one in TRAITS.items() if one.native]
"""Native schemes."""

UNCOSTED = [name for name, one in TRAITS.items() if one.native or one.adaptive]
"""Schemes that state no cost, because a library or the chosen scheme determines it."""


def scheme(name):
    return registry.find("aggregation", name)


SEGMENTED = [name for name in SCHEMES if "segment_bytes" in registry.settings_of(scheme(name))]
"""Schemes that cut vectors into segments."""

ALL = [(collective, name) for collective in ONE_VECTOR for name in schemes(collective)]
OTHERS = [one for one in ALL if one[0] != "allreduce"]
"""(collective, scheme) of all collectives of one vector but allreduce."""

IN_SEGMENTS = [("allreduce", name) for name in SEGMENTED]
IN_SEGMENTS += [(collective, name) for collective, name in OTHERS if name in {"chain", "double_tree"}]
"""(collective, scheme) of those that take segments."""

ON_HOSTS = [(collective, name) for collective, name in ALL if name in NATIVE and name in SCHEMES]
"""(collective, scheme) of the MPI library."""


def called(collective, name, comm, buffer, **settings):
    """Call a scheme's collective on a whole vector."""
    return offered(collective, name)(comm, operand(collective, buffer, comm.size), **settings)


def called_out_of_place(collective, name, comm, given, result):
    """Call a native collective that reads one vector and writes another."""
    return offered(collective, name)(comm, out_of_place_operand(collective, given, result, comm.size))
