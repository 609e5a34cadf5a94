"""What each method keeps in memory, and how far apart in time and in space its workers are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.fields import configuration
from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import NONE, digits, percent, volume
from hpcdl.report.seeds import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.fields import Key
    from hpcdl.analysis.staleness import Staleness
    from hpcdl.report.seeds import Method, Row
    from hpcdl.report.settings import Settings

BYTES: Final = {"float64": 8}
"""Of a parameter; below that precision they are kept in float32."""
SHOWN: Final = 4
"""Staleness 0 to 3 has a column of its own."""
SLOW: Final = 1.5
"""A worker of which others make so many times the gradients is slow."""


def memory(groups: Sequence[Sequence[Method]], settings: Settings) -> Section:
    """Vectors per rank and distance between ranks, one table per problem; one row where all methods are alike."""
    tables = []
    for methods in groups:
        shown = [row for row in rows(methods) if row.scale["memory_bytes_per_rank"]]
        if not shown:
            continue
        cells = [_memory(row) for row in shown]
        if len(cells) > 1 and len({tuple(known) for _, _, *known in cells}) == 1:
            cells = [(f"all {len(cells)}", NONE, *cells[0][2:])]
        header = ("method", "ranks", "memory per rank", "of the parameters", "consensus distance")
        tables.append(Table(settings.title(shown[0].scale.records[0]), header, cells).without_empty())
    note = (
        "Memory: vectors of the rank that holds most, also as a multiple of the parameters: parameters, "
        "gradients, what optimizer and strategy keep, and copies that wait for the test set, one for each look at "
        "it, where training does not wait for that. Consensus distance: root mean square over ranks of the "
        "distance of a rank's parameters from their average, at the last look at the test set."
    )
    return Section("Memory and consensus", [note] if tables else [], tables=tables)


def _memory(row: Row) -> tuple[str, ...]:
    scale = row.scale
    size, parameters = scale.median("memory_bytes_per_rank"), scale["parameters"]
    times = size / (parameters * BYTES.get(scale["dtype"], 4)) if size and parameters else None
    return (
        row.name,
        str(scale["ranks"]),
        volume(size),
        f"{digits(times)} x" if times else NONE,
        digits(scale.median("consensus_distance")),
    )


def staleness(
    groups: Sequence[Sequence[Method]], launches: Sequence[tuple[Mapping[str, Any], Staleness]], settings: Settings
) -> Section:
    """How old gradients were when they were applied, one table per problem that has such.

    ``launches``: the fields and the staleness of every launch that has any.
    """
    tables = []
    for methods in groups:
        cells, notes = [], []
        for row in rows(methods):
            keys = {_key(record) for record in row.scale.records}
            own = [one for fields, one in launches if _key(fields) in keys]
            if own:
                cells.append(_staleness(row, own))
                notes += _slow_worker(row, own[0])
        if cells:
            header = (
                *("method", "ranks", "workers", "gradients an update", "mean", "expected", "max"),
                *(f"at {age}" for age in range(SHOWN)),
                f"at {SHOWN} or more",
            )
            title = settings.title(methods[0].scales[0].records[0])
            tables.append(Table(title, header, cells, notes=notes).without_empty())
    note = (
        "Staleness of a gradient: updates that the parameters saw from when they were fetched for it until it was "
        "applied. Expected: the long-run mean where workers wait for nobody and fetch with every push, which is "
        "(workers - 1) / gradients an update, and with overlap, where parameters are used a step after they were "
        "fetched, (2 workers - 1) / gradients an update. Shares are of the gradients applied within the measured "
        "span, the maximum is of the whole training."
    )
    return Section("Staleness", [note] if tables else [], tables=tables)


def _key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"), fields.get("seed"))


def _staleness(row: Row, own: Sequence[Staleness]) -> tuple[str, ...]:
    scale = row.scale
    shares = [sum(one.shares[age] for one in own if age < len(one.shares)) / len(own) for age in range(SHOWN)]
    return (
        row.name,
        str(scale["ranks"]),
        str(scale["workers"] or NONE),
        digits(scale.median("gradients_per_update")),
        digits(scale.median("staleness_mean")),
        digits(scale.median("staleness_expected")),
        f"{scale.high('staleness_max') or 0:.0f}",
        *(percent(share, 1) for share in (*shares, max(0.0, 1 - sum(shares)))),
    )


def _slow_worker(row: Row, one: Staleness) -> list[str]:
    """What tells the slowest worker from the others, if it is much slower."""
    rank, (least, old) = min(one.by_worker.items(), key=lambda worker: worker[1][0])
    others = [its for worker, its in one.by_worker.items() if worker != rank]
    made = sum(count for count, _ in others)
    if not others or made < SLOW * least * len(others):
        return []
    theirs = sum(count * mean for count, mean in others) / made
    line = (
        f"{row.name} at {row.scale['ranks']} ranks: worker {rank} made {percent(least, least + made)} of the "
        f"gradients, of mean staleness {digits(old)}; those of the others had {digits(theirs)}."
    )
    return [line]
