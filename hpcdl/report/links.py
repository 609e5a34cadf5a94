"""How fast every rank reaches every other, and who is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import NONE, digits, rate, seconds, volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.links import Links
    from hpcdl.analysis.messages import Speeds

WIDEST: Final = 16
"""Ranks whose map still fits a page."""

SMALL: Final = 4096
"""Bytes below which a message's time says more than its rate."""

NOTE: Final = (
    "Median over repetitions of an exchange, both directions at once, by its slower side. A host is named if the "
    "median of its links is below 85 % of the others', a link if it is below 85 % of the median and neither of "
    "its hosts is slow. Nobody is named where ranks outnumber cores."
)

TRACED: Final = (
    "From the events of other cases: the most that a host was seen to send, or to receive, for its ports carry no "
    "more than they can, whoever waits. A host is named if both are below 80 % of the others', and then its case "
    "has a map of the most that each link alone was seen to carry: rows send, columns receive."
)


def links(found: Sequence[Links], cores: float | None, traced: Sequence[Speeds] = ()) -> Section:
    """A map per case, and who is conspicuous in it; ``cores`` as for :func:`slow`.

    Of cases that were ``traced``, those alone in which somebody is conspicuous.
    """
    odd = [one for one in traced if _told(one, cores)]
    tables = [Table(_title(one), *_map(one)) for one in found]
    tables += [Table(f"{one.fields.get('case')}: share of the usual speed", *_shares(one)) for one in odd]
    notes = [*([NOTE] if found else []), *([TRACED] if odd else [])]
    return (
        Section("Links", notes, points=slow(found, cores, traced), tables=tables) if tables else Section("Links")
    )


def slow(found: Sequence[Links], cores: float | None, traced: Sequence[Speeds] = ()) -> list[str]:
    """One line per slow host or link.

    None where ranks share the ``cores`` of a node: then who waits for a core looks like a slow host.
    """
    lines = [line for one in traced for line in _told(one, cores)]
    for one in found:
        if _crowded(one, cores):
            continue
        for rank, share in one.slow_hosts():
            lines.append(f"{_title(one)}: {_named(one, rank)} runs at {share:.2f} of the others' speed.")
        for i, j, share in one.slow_links():
            lines.append(
                f"{_title(one)}: the link between {_named(one, i)} and {_named(one, j)} runs at {share:.2f} of "
                "the usual speed."
            )
    return lines


def range_of(found: Sequence[Links], cores: float | None) -> list[str]:
    """One line per case of several pairs: the fastest, the slowest, and the slowest rank, conspicuous or not."""
    lines = []
    for one in found:
        if len(one.seconds) == 2:
            continue
        pairs = [f"{_pair(one, i, j)} in {seconds(time)}" for i, j, time in one.extremes()]
        said = f"{_title(one)}: fastest {pairs[0]}, slowest {pairs[1]}" if pairs else f"{_title(one)}: no times"
        shares = one.shares()
        if _crowded(one, cores):
            said += "; ranks share cores, and who is slow is not told"
        elif shares:
            rank, share = shares[0]
            said += f"; slowest {_named(one, rank)}, {digits(share)} of the others' speed"
        lines.append(f"{said}.")
    return lines


def _crowded(one: Links, cores: float | None) -> bool:
    return cores is not None and len(one.seconds) > cores * max(1, len(set(one.hosts)))


def _told(one: Speeds, cores: float | None) -> list[str]:
    if cores is not None and one.crowded(cores):
        return []
    return [
        f"{one.fields.get('case')}: the messages of {one.hosts[host]} run at {share:.2f} of the others' speed."
        for host, share in one.slow_hosts()
    ]


def _shares(one: Speeds) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    speed = one.relative()
    shown = [[digits(float(v)) if np.isfinite(v) else NONE for v in row] for row in speed]
    if len(one.hosts) <= WIDEST:
        return ("", *one.hosts), [(name, *row) for name, row in zip(one.hosts, shown, strict=True)]
    return ("", "share"), [(one.hosts[host], digits(share)) for host, share in one.slow_hosts()]


def _title(one: Links) -> str:
    pattern = {"all_pairs": "all pairs", "bisection": "bisection"}[str(one.fields["pattern"])]
    return f"{pattern}, {len(one.seconds)} ranks, {volume(one.fields['message_bytes'])}"


def _named(one: Links, rank: int) -> str:
    several = len(set(one.hosts)) > 1
    return f"rank {rank} on {one.hosts[rank]}" if several else f"rank {rank}"


def _pair(one: Links, i: int, j: int) -> str:
    return f"{_named(one, i)} with {_named(one, j)}"


def _map(one: Links) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: the map itself, or of many ranks only each one's slowest, median and fastest link."""
    size = one.fields["message_bytes"]
    shown, values = (seconds, one.seconds) if size < SMALL else (rate, one.rates)
    ranks = range(len(values))
    if len(values) <= WIDEST:
        rows = [
            (str(i), *(shown(float(values[i, j])) if np.isfinite(values[i, j]) else NONE for j in ranks))
            for i in ranks
        ]
        return ("rank", *map(str, ranks)), rows
    marks = np.nanquantile(values, [0, 0.5, 1], axis=1).T
    return ("rank", "least", "median", "most"), [(str(i), *(shown(float(v)) for v in marks[i])) for i in ranks]
