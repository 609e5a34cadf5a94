"""Transports that an MPI library uses, as its own messages tell.

UCX names the transports of each new endpoint if its log level is "info". Open MPI's comm_method hook prints a
summary of its connections. MPICH over libfabric prints the provider in its debug summary.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

VARIABLES: Final = {
    "UCX_LOG_LEVEL": "info",
    "OMPI_MCA_ompi_display_comm": "mpi_init",
    "MPIR_CVAR_DEBUG_SUMMARY": "1",
}
"""Variables that make the libraries print their transports, to be set before they are loaded."""

_TCP: Final = {"tcp", "sockets", "udp"}


class Transports(NamedTuple):
    """Names of transports; an empty tuple: no such connection, or none was named."""

    within_host: tuple[str, ...]
    between_hosts: tuple[str, ...]


def transports(output: str) -> Transports:
    """Return the transports in the ``output`` of all ranks."""
    within: list[str] = []
    between: list[str] = []
    for place, listed in re.findall(r"UCX +INFO .*(intra-node|inter-node) cfg#\d+ +\S*?tag\(([^)]*)\)", output):
        names = [one.partition("/")[0] for one in listed.split()]
        (within if place == "intra-node" else between).extend(names)
    for place, listed in re.findall(r"^\s*(on-host|off-host):.*connections are (.*)$", output, re.MULTILINE):
        names = [one for one in re.split(r",? or |, ", listed.strip()) if one not in {"self", "n/a"}]
        (within if place == "on-host" else between).extend(names)
    between += re.findall(r"^libfabric provider: *(\S+)", output, re.MULTILINE)
    return Transports(tuple(dict.fromkeys(within)), tuple(dict.fromkeys(between)))


def is_tcp(names: tuple[str, ...]) -> bool:
    """Return True if one of the transports is TCP or UDP through the kernel."""
    return any(name.partition(";")[0] in _TCP for name in names)
