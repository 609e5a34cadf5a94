"""Communication programs of cases, ready to be simulated on a network; measured ones determine its costs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation, operand
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.scheme import traits_of
from hpcdl.cases.parts.operations import Operation, Simulation
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.network import Network
from hpcdl.fabric.pairs import rounds
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.prediction.network_file import NetworkEstimate, bounds
from hpcdl.trace.log import PING_PONG


@dataclass(frozen=True)
class Exchange:
    """An exchange of ``size`` bytes between the ranks of each pair, of size-only vectors."""

    pattern: str
    """``pair`` or ``bisection``: see :func:`hpcdl.fabric.pairs.rounds`."""
    ranks: int
    size: int

    def simulate(self, network: Network) -> Simulation:
        """Return time and volume on ``network``."""
        (partners,), payload = rounds(self.ranks, self.pattern), phantom(self.size, np.uint8)

        async def exchange(comm: Comm) -> None:
            if (peer := partners[comm.rank]) is not None:
                await comm.exchange(payload, peer, payload, peer)

        world = simulated(self.ranks, network)
        world.run(exchange)
        return Simulation(world.now, max(world.messages), max(world.bytes), self.ranks)


Program = Operation | Exchange


@dataclass(frozen=True)
class MeasuredProgram:
    """The program of a measured case."""

    record: Record
    program: Program

    @property
    def scheme(self) -> str:
        """Name of the scheme, with its settings."""
        return str(self.record.aggregation)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.program.ranks

    @property
    def seconds(self) -> float:
        """Median over repetitions of the slowest rank's time."""
        return self.record.time_p50_seconds or 0.0

    @property
    def messages(self) -> int:
        """Messages of all ranks, an estimate of the simulation's cost; 0 if not counted."""
        return round(self.ranks * (self.record.messages_per_rank or 0))

    @cached_property
    def shares_ports(self) -> bool:
        """True if several messages of a port are under way at once; a simulated port carries one at a time."""
        return scheme_traits(self.record).shares_ports and self.ranks > 2

    def predicted(self, network: Network) -> float:
        """Return the simulated time on ``network`` (s)."""
        shared = network_of(self.record, network, self.ranks) if self.shares_ports else network
        return self.program.simulate(shared).seconds


def measured_programs(records: Iterable[Record]) -> list[MeasuredProgram]:
    """Return the measured programs that a network can be fitted to.

    Omitted are simulated, failed and incorrect cases, cases of one rank, native or adaptive schemes.
    ValueError: an unknown scheme.
    """
    programs = []
    for record in records:
        failed = record.error or record.correct is False or not record.time_p50_seconds
        if record.network or failed or record.ranks < 2:
            continue
        traits = scheme_traits(record)
        if not (traits.native or traits.adaptive) and (program := program_of(record, record.ranks)) is not None:
            programs.append(MeasuredProgram(record, program))
    return programs


def cheapest(programs: Sequence[MeasuredProgram], messages: int) -> list[MeasuredProgram]:
    """Return as many programs as can be simulated with so many messages, in their order.

    Each number of ranks contributes its cheapest programs, in turn.
    """
    turns, order, places = Counter[int](), [], []
    for place in sorted(range(len(programs)), key=lambda place: programs[place].messages):
        turns[programs[place].ranks] += 1
        order.append((turns[programs[place].ranks], place))
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
        spec = replace(record.spec, ranks=ranks, message_bytes=size)
        program: Operation = spec.operation()
        registry.check_settings(program.function.func, spec.aggregation.settings)
        operand(spec.collective, phantom(spec.length, spec.dtype), ranks)
        return program
    pattern = (record.pattern or "pair") if record.kind == "pairwise" else ""
    if pattern in {"pair", "bisection"} and record.aggregation in {"fabric", PING_PONG}:
        return Exchange(pattern, ranks, size)
    return None


def network_of(record: Record, network: Network, ranks: int) -> Network:
    """Return ``network`` for a record's scheme on ``ranks`` ranks: with shared ports if the scheme shares them.

    Messages under way at once then share a port's rate. Latencies overlap except the overhead, for which each of
    an exchange's two messages occupies both ranks. A detailed link needs none of it. ValueError: the scheme is for
    one host, and ranks are on several.
    """
    traits = scheme_traits(record)
    if traits.one_host and network.host(ranks - 1) != network.host(0):
        raise ValueError(f"{record.aggregation!r} is for ranks of one host")
    if not traits.shares_ports or ranks < 3 or network.topology is not None or network.link.overhead is not None:
        return network
    twice = 2 * network.site.overhead_seconds
    link, inside = (replace(each, alpha=max(each.alpha - twice, 0.0)) for each in (network.link, network.inside))
    return replace(network, topology=FatTree(hosts=[ranks]), link=link, inside=inside)


def predicted_record(
    like: Record,
    ranks: int,
    estimate: NetworkEstimate,
    farthest: int | None,
    seconds: float,
    margins: Sequence[float],
    **numbers: Any,
) -> Record:
    """Return the record of a case's prediction on ``ranks`` ranks: its time (s), marks, and further ``numbers``.

    ``margins``: of the 95 % intervals of the time's logarithm. ``farthest``: see :meth:`NetworkEstimate.distance`.
    """
    low, high = bounds(seconds, *margins)
    return like.described.but(
        ranks=ranks,
        predicted_seconds=seconds,
        predicted_low_seconds=low,
        predicted_high_seconds=high,
        times_the_measured_ranks=estimate.distance(ranks, farthest),
        library_decides=scheme_traits(like).native,
        network=estimate.network.name,
        **numbers,
    )
