"""Checks of an MPI job: ranks, transports, clocks, and ranks that share cores."""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING, Final

from hpcdl.launch import machine
from hpcdl.launch.host_checks import Finding
from hpcdl.launch.mpi_probe import is_tcp
from hpcdl.launch.testbed_settings import emulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcdl.launch.mpi_probe import Probe

SKEW: Final = 10_000_000
"""Difference of wall clocks (ns) that synchronised hosts do not reach."""
ALIGNMENT: Final = 1_000_000
"""Error of the alignment of traces (ns) beyond which waiting times are doubtful."""
CHOICES: Final = ("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_btl", "MPIR_CVAR_NOLOCAL")
"""Variables that choose the transports of an MPI library."""
FAST_DRIVERS: Final = ("cxi", "efa")
"""Drivers of network cards whose fabric is not InfiniBand."""


def mpi_checks(probe: Probe, root: Path = machine.ROOT) -> Iterator[Finding]:
    """Yield the findings about the ranks, transports and clocks of a job."""
    ranks = len(probe.hosts)
    if probe.total != ranks:
        yield Finding("FAILED", "MPI", f"{ranks} ranks add up to {probe.total}", "install the MPI library again")
        return
    hosts = f"{len(probe.nodes)} host{'s' if len(probe.nodes) > 1 else ''}"
    yield Finding("ok", "MPI", f"{probe.library}, {ranks} ranks on {hosts} add up")
    yield within_host(probe, os.environ)
    yield between_hosts(probe, os.environ, fast_fabric(root))
    yield clock_skew(probe)


def fast_fabric(root: Path = machine.ROOT) -> list[str]:
    """Return the ports and cards of fabrics that are faster than TCP and are up."""
    ports, cards = machine.infiniband(root), machine.network(root)
    active = (
        [name for name, port in ports.items() if "ACTIVE" in str(port["state"])] if isinstance(ports, dict) else []
    )
    known = cards.items() if isinstance(cards, dict) else ()
    return active + [name for name, card in known if str(card["driver"]).startswith(FAST_DRIVERS)]


def within_host(probe: Probe, variables: Mapping[str, str]) -> Finding:
    """Return the transports between ranks of one host: shared memory, except on a testbed."""
    names = probe.transports.within_host
    if not names:
        why = "no two ranks share a host" if len(probe.nodes) == len(probe.hosts) else "the library does not tell"
        return Finding("ok", "transport within a host", why)
    if not is_tcp(names) or emulated(variables) is not None:
        return Finding("ok", "transport within a host", ", ".join(names))
    advice = _unset(variables) or "choose shared memory"
    return Finding("warning", "transport within a host", f"{', '.join(names)}: no shared memory", advice)


def between_hosts(probe: Probe, variables: Mapping[str, str], fabric: list[str]) -> Finding:
    """Return the transports between hosts; TCP with an unused ``fabric`` is a fallback."""
    names, subject = probe.transports.between_hosts, "transport between hosts"
    if len(probe.nodes) == 1:
        return Finding(
            "ok", subject, "one host; srun hpcdl check, or mpirun -n N hpcdl check, checks those of a job"
        )
    if not names:
        return Finding("ok", subject, "the library does not tell")
    detail = ", ".join(names)
    if not is_tcp(names) or not fabric:
        return Finding("ok", subject, f"{detail}; no faster fabric is up" if is_tcp(names) else detail)
    advice = _unset(variables) or "use the MPI library of the cluster: slurm/README.md, Your site's MPI"
    return Finding("warning", subject, f"{detail}: TCP fallback, although {', '.join(fabric)} is up", advice)


def _unset(variables: Mapping[str, str]) -> str:
    chosen = [name for name in CHOICES if name in variables]
    return f"unset {' '.join(chosen)}" if chosen else ""


def clock_skew(probe: Probe) -> Finding:
    """Return the greatest difference of the hosts' wall clocks, and the error of the traces' alignment."""
    if len(set(probe.machines)) == 1:
        return Finding("ok", "clock skew", "one clock: all ranks are on one machine")
    offsets = [offset for offset, _ in probe.skew]
    skew, error = max(offsets) - min(offsets), max(error for _, error in probe.skew)
    detail = (
        f"wall clocks of {len(set(probe.machines))} hosts differ by {skew / 1e6:.3g} ms "
        f"(error {error / 1e6:.2g} ms); "
        f"traces are aligned to {probe.alignment / 1e3:.3g} us"
    )
    if skew - 2 * error > SKEW:
        departures = [abs(offset - median(offsets)) for offset in offsets]
        worst = probe.hosts[departures.index(max(departures))]
        advice = f"synchronise {worst} (chronyc tracking): dates of runs disagree; traces are aligned anyway"
        return Finding("warning", "clock skew", detail, advice)
    if probe.alignment > ALIGNMENT:
        advice = "repeat on a quiet network: shorter waits for late ranks cannot be told from clock errors"
        return Finding("warning", "clock skew", detail, advice)
    return Finding("ok", "clock skew", detail)


def oversubscription(probe: Probe) -> Iterator[Finding]:
    """Yield for the fullest machine if its ranks and their threads fit on the cores that they may use."""
    fullest, most = "", (0.0, 0, 0, 0)
    for name in dict.fromkeys(probe.machines):
        ranks = [rank for rank, machine_of_rank in enumerate(probe.machines) if machine_of_rank == name]
        cores = len(set().union(*(probe.cores[rank] for rank in ranks)))
        threads = sum(probe.threads[rank] for rank in ranks)
        most, fullest = max(
            (most, fullest), ((threads / cores, len(ranks), threads, cores), probe.hosts[ranks[0]])
        )
    share, count, threads, cores = most
    detail = f"{count} ranks with {threads} threads on {cores} cores of {fullest}"
    if share <= 1:
        yield Finding("ok", "ranks and cores", detail)
        return
    advice = (
        f"start at most {max(1, cores * count // threads)} ranks per host, or give them more cores: ranks that "
        "share cores measure no scaling"
    )
    yield Finding("warning", "ranks and cores", detail, advice)
