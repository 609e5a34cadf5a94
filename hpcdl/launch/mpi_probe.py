"""Probe of an MPI job: library, hosts, cores, transports and clocks of its ranks.

``python -m hpcdl.launch.mpi_probe`` prints the probe of its job as one line of JSON.
"""

import ctypes
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.launch.process import Library, abort_on_error, load, start

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
        names = [name.partition("/")[0] for name in listed.split()]
        (within if place == "intra-node" else between).extend(names)
    for place, listed in re.findall(r"^\s*(on-host|off-host):.*connections are (.*)$", output, re.MULTILINE):
        names = [name for name in re.split(r",? or |, ", listed.strip()) if name not in {"self", "n/a"}]
        (within if place == "on-host" else between).extend(names)
    between += re.findall(r"^libfabric provider: *(\S+)", output, re.MULTILINE)
    return Transports(tuple(dict.fromkeys(within)), tuple(dict.fromkeys(between)))


def is_tcp(names: tuple[str, ...]) -> bool:
    """Return True if one of the transports is TCP or UDP through the kernel."""
    return any(name.partition(";")[0] in _TCP for name in names)


MESSAGE: Final = 1 << 17
"""Bytes of the messages that open connections: long ones have transports of their own."""


@dataclass(frozen=True)
class Probe:
    """Properties of a job; lists are by rank."""

    library: str
    total: int
    """Sum over ranks of 1."""
    hosts: list[str]
    machines: list[str]
    """Kernels: emulated hosts and containers of one machine share one."""
    cores: list[list[int]]
    threads: list[int]
    """Threads of OpenMP or BLAS by the environment."""
    transports: Transports
    skew: list[tuple[int, int]]
    """Offset of the wall clock from rank 0's, and its greatest error (ns)."""
    alignment: int
    """Greatest error of the offsets by which traces are aligned (ns)."""
    local: list[Any]
    """Result of the function given to :func:`probe`, of the first rank of each host; else None."""

    @property
    def nodes(self) -> list[str]:
        """Names of the hosts, each once."""
        return list(dict.fromkeys(self.hosts))


def probe(library: Library, local: Callable[[], Any]) -> Probe | None:
    """Probe the job of this MPI ``library``, which is started; None on ranks other than 0. Collective.

    ``local`` is called on the first rank of each host. Transports are unknown unless
    :data:`hpcdl.launch.mpi_probe.VARIABLES` were set before the library was loaded.
    """
    from mpi4py import MPI

    from hpcdl.fabric.mpi.backoff import here
    from hpcdl.launch.environment import describe_rank

    with _captured() as printed:
        start()
        from hpcdl.fabric.mpi.comm import compared  # which needs MPI

        world, sent = MPI.COMM_WORLD, np.zeros(MESSAGE, np.uint8)
        for distance in (1, -1):
            source, target = (world.rank - distance) % world.size, (world.rank + distance) % world.size
            world.Sendrecv(sent, target, 0, np.empty_like(sent), source)
        total = world.allreduce(1)
    me = describe_rank()
    hosts = world.allgather(me["hostname"])
    first = hosts.index(me["hostname"]) == world.rank
    threads = me["threads"] if isinstance(me["threads"], int) else 1
    checked = local() if first else None
    of_rank = here().machine, sorted(os.sched_getaffinity(0)), threads, printed[0], checked
    gathered = world.gather((*of_rank, compared(world, time.time_ns), compared(world)[1]))
    if gathered is None:
        return None
    machines, cores, of_threads, texts, locals_, skew, errors = map(list, zip(*gathered, strict=True))
    used, name = transports("\n".join(texts)), f"{library.name} {library.major}"
    return Probe(name, total, hosts, machines, cores, of_threads, used, skew, max(errors), locals_)


@contextmanager
def _captured() -> Iterator[list[str]]:
    """Context manager: yield a list that gets the text which libraries print to standard output in the body."""
    names: list[str] = []
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield names
        finally:
            ctypes.CDLL(None).fflush(None)  # C's own buffer
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            names.append(file.read().decode(errors="replace"))


def main() -> None:
    """Print the probe of this job, without checks of the hosts."""
    os.environ.update(VARIABLES)
    library = load()
    with abort_on_error():
        result = probe(library, lambda: None)
    if result is not None:
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
