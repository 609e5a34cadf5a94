"""Measured communication programs of a run, ready to be simulated."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts.collectives import operand
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.scheme import traits_of
from hpcdl.cases.simulation.operations import Operation, operation
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.pairs import rounds
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.trace.run import Run

Program = Callable[[Comm], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class MeasuredProgram:
    """A program with its number of ranks and bytes, and its measured time."""

    scheme: str
    ranks: int
    size: int
    """Bytes of the vector or message."""
    seconds: float
    """Median over repetitions of the slowest rank's time."""
    program: Program
    """The program, with a size-only payload."""
    messages: int = 0
    """Messages of all ranks, an estimate of the simulation's cost; 0 if not counted."""
    shares_ports: bool = False
    """True if several messages of a port are under way at once; a simulated port carries one at a time."""


def measured_programs(records: Iterable[Record]) -> list[MeasuredProgram]:
    """Return the measured programs of a run that a network can be fitted to.

    Omitted are simulated, failed and incorrect cases, cases of one rank, native or adaptive schemes, and two
    collectives at once.
    """
    return [program for record in records if (program := measured_program(record))]


def measured_program(record: Record) -> MeasuredProgram | None:
    """Return the measured program of one record; None if it is omitted from fits."""
    ranks, seconds, scheme = record.ranks, record.time_p50_seconds, str(record.aggregation)
    if record.network or record.error or record.correct is False or not seconds or ranks < 2 or record.concurrent:
        return None
    traits = scheme_traits(record)
    program = None if traits.native or traits.adaptive else program_of(record, ranks)
    if program is None:
        return None
    messages = round(ranks * (record.messages_per_rank or 0))
    shares_ports = traits.shares_ports and ranks > 2
    return MeasuredProgram(scheme, ranks, record.message_bytes or 0, seconds, program, messages, shares_ports)


def cheapest(programs: Sequence[MeasuredProgram], messages: int) -> list[MeasuredProgram]:
    """Return as many programs as can be simulated with so many messages, in their order.

    Each number of ranks contributes its cheapest programs, in turn.
    """
    turns: dict[int, int] = {}
    order = []
    for place in sorted(range(len(programs)), key=lambda place: programs[place].messages):
        turn = turns[programs[place].ranks] = turns.get(programs[place].ranks, 0) + 1
        order.append((turn, place))
    places = []
    for _, place in sorted(order):
        if programs[place].messages <= messages:
            messages -= programs[place].messages
            places.append(place)
    return [programs[place] for place in sorted(places)]


def scheme_traits(record: Record) -> Aggregation:
    """Return the traits of a record's scheme; the defaults for a kind of case without schemes."""
    scheme = getattr(record.spec, "aggregation", None)
    return Aggregation() if scheme is None else traits_of(scheme)


def program_of(record: Record, ranks: int) -> Program | None:
    """Return the program of a collective or an exchange on ``ranks`` ranks; None for other records.

    ValueError: an unknown scheme, or one that does not support so many ranks.
    """
    size = record.message_bytes or 0
    if record.kind == "collective":
        spec, dtype = record.spec, str(record.dtype)
        if spec.concurrent and scheme_traits(record).native:
            return None  # its time is a formula, in which nothing shares links
        length, scheme = size // np.dtype(dtype).itemsize, spec.aggregation
        program = operation(spec.collective, scheme.name, scheme.settings, ranks, length, dtype)
        if spec.concurrent:
            beside = operation(spec.concurrent, scheme.name, scheme.settings, ranks, length, dtype)
            program = replace(program, beside=beside)
        registry.check_settings(program.function.func, scheme.settings)
        operand(spec.collective, phantom(length, dtype), ranks)
        return program
    pattern = (record.pattern or "pair") if record.kind == "pairwise" else ""
    if pattern in {"pair", "bisection"} and record.aggregation == "fabric":
        (partners,) = rounds(ranks, pattern)
        return partial(_exchange, partners, phantom(size, np.uint8))
    return None


def check_hosts(record: Record, network: Network, ranks: int) -> None:
    """Raise ValueError if a scheme for one host has its ``ranks`` on several hosts of ``network``."""
    if scheme_traits(record).one_host and network.host(ranks - 1) != network.host(0):
        raise ValueError(f"{record.aggregation!r} is for ranks of one host")


def hosts(run: Run) -> tuple[int, ...]:
    """Return the host number of each of the run's ranks, in order of appearance; empty if unknown."""
    names = [str(rank.get("hostname", "")) for rank in run.environment.get("ranks") or []]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def with_shared_ports(network: Network, ranks: int, *, shares: bool) -> Network:
    """Return the network of a scheme that ``shares`` ports: messages under way at once share a port's rate.

    Latencies overlap but for the overhead, for which each of an exchange's two messages occupies both ranks.
    """
    if not shares or ranks < 3 or network.topology is not None:
        return network
    twice = 2 * network.site.overhead_seconds
    link, inside = (Link(max(each.alpha - twice, 0.0), each.beta) for each in (network.link, network.inside))
    return replace(network, topology=FatTree(hosts=[ranks]), link=link, inside=inside)


def simulate(program: Program, ranks: int, network: Network) -> tuple[float, int]:
    """Return the time of a program of :func:`program_of` (s) and the number of ranks that were simulated."""
    if isinstance(program, Operation):
        simulation = program.simulate(network)
        return simulation.seconds, simulation.simulated_ranks
    world = simulated(ranks, network)
    world.run(program)
    return world.now, ranks


async def _exchange(partners: list[int | None], payload: Any, comm: Comm) -> None:
    peer = partners[comm.rank]
    if peer is not None:
        await comm.exchange(payload, peer, payload, peer)
