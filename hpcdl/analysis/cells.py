"""What a run measured of communication alone, each time beside the program that took it, ready to be simulated."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.collectives import offered, operand
from hpcdl.analysis.labels import parts
from hpcdl.analysis.links import rounds
from hpcdl.fabric.phantom import phantom

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.trace.run import Run

    Program = Callable[[Comm], Coroutine[Any, Any, None]]

LIBRARY: Final = ("native", "nccl")
"""Schemes named so, or made of such, let a library decide what is sent."""


@dataclass(frozen=True)
class Cell:
    """One program on so many ranks and bytes, and how long it took."""

    scheme: str
    ranks: int
    size: int
    """Bytes of the vector or message."""
    seconds: float
    """Median of the slowest rank."""
    program: Program
    """With a size-only payload."""
    messages: int = 0
    """Of all ranks together, about what simulating it costs; 0 where they were not counted."""


def cells(records: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Those among a run's records that a network can be fitted to.

    Left out are simulated cases, failed and wrong ones, one rank, and what a library decides or a measurement did
    (``auto``).
    """
    return [cell for record in records if (cell := cell_of(record))]


def cell_of(record: Mapping[str, Any]) -> Cell | None:
    """The cell of one record, None for one of those that are left out."""
    ranks, seconds, scheme = record["ranks"], record["time_p50_seconds"], str(record["aggregation"])
    if record.get("network") or record.get("error") or record["correct"] is False or not seconds or ranks < 2:
        return None
    program = None if scheme == "auto" or of_a_library(scheme) else program_of(record, ranks)
    if program is None:
        return None
    messages = round(ranks * (record.get("messages_per_rank") or 0))
    return Cell(scheme, ranks, record["message_bytes"], seconds, program, messages)


def cheapest(cells: Sequence[Cell], messages: int) -> list[Cell]:
    """As many as can be simulated with so many messages, in their order.

    Each number of ranks gives those of its own that cost least, one after the other.
    """
    turns: dict[int, int] = {}
    order = []
    for place in sorted(range(len(cells)), key=lambda place: cells[place].messages):
        turn = turns[cells[place].ranks] = turns.get(cells[place].ranks, 0) + 1
        order.append((turn, place))
    places = []
    for _, place in sorted(order):
        if cells[place].messages <= messages:
            messages -= cells[place].messages
            places.append(place)
    return [cells[place] for place in sorted(places)]


def of_a_library(scheme: str) -> bool:
    """Whether messages are a library's, so that their simulation is a guess."""
    return any(name in scheme for name in LIBRARY)


def program_of(record: Mapping[str, Any], ranks: int) -> Program | None:
    """What a record of a collective or an exchange ran, on ``ranks`` ranks; None for anything else.

    ValueError: a scheme that is not there, or does not go with so many ranks.
    """
    if record["kind"] == "collective":
        payload = phantom(record["message_bytes"] // np.dtype(record["dtype"]).itemsize, record["dtype"])
        name, settings = chosen(record["aggregation"])
        function = offered(record["collective"], name)
        registry.check_settings(function, settings)
        return partial(_called, partial(function, **settings), operand(record["collective"], payload, ranks))
    pattern = record.get("pattern", "pair") if record["kind"] == "pairwise" else None
    if pattern in {"pair", "bisection"} and record["aggregation"] == "fabric":
        (partners,) = rounds(ranks, pattern)
        return partial(_exchange, partners, phantom(record["message_bytes"], np.uint8))
    return None


def chosen(label: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings of what is called ``ring`` or ``tree(arity=4)``."""
    name, settings = parts(label)
    return name, {key: _value(text) for key, text in settings.items()}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word


def hosts(run: Run) -> tuple[int, ...]:
    """The host of each of the run's ranks, numbered as they first appear; nothing if unknown."""
    names = [str(rank.get("hostname", "")) for rank in run.environment.get("ranks") or []]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


async def _called(collective: Callable[..., Coroutine[Any, Any, None]], operand: Any, comm: Comm) -> None:
    await collective(comm, operand)


async def _exchange(partners: list[int | None], payload: Any, comm: Comm) -> None:
    peer = partners[comm.rank]
    if peer is not None:
        await comm.exchange(payload, peer, payload, peer)
