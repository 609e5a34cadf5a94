"""Fastest algorithm of a collective by size and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.charts import Tiles
from hpcdl.report.formatting import volume
from hpcdl.report.method_names import scheme_name
from hpcdl.report.operations import TIED, grouped, place, ranked, sizes

if TYPE_CHECKING:
    from hpcdl.analysis.scaling import Record
    from hpcdl.report.findings import Findings
    from hpcdl.report.operations import Group

NOTE: Final = (
    "The algorithm of the lowest median time. Tied (~): a test of the launches does not tell it from "
    "another algorithm. Inconclusive (?): one launch."
)


def charts(found: Findings) -> list[Tiles]:
    """Return one chart per collective with several sizes or numbers of ranks."""
    families: dict[Group, dict[int, dict[int, list[Record]]]] = {}
    for group, rows in grouped(found.records, "collective").items():
        families.setdefault(group._replace(ranks=0), {})[group.ranks] = sizes(rows)
    made = [_chart(family, by_ranks) for family, by_ranks in families.items()]
    return [one for one in made if len(one.rows) * len(one.columns) > 1 and len(_names(one)) > 1]


def _names(one: Tiles) -> set[str]:
    return {name for row in one.names for name in row} - {""}


def _chart(family: Group, by_ranks: dict[int, dict[int, list[Record]]]) -> Tiles:
    every = sorted({size for of_ranks in by_ranks.values() for size in of_ranks}, reverse=True)
    tiles = [[_tile(of_ranks.get(size, [])) for of_ranks in by_ranks.values()] for size in every]
    return Tiles(
        f"Fastest algorithm: {family.titled('by size and ranks')}",
        [volume(size) for size in every],
        [str(ranks) for ranks in by_ranks],
        "size",
        "ranks",
        [[name for name, _ in row] for row in tiles],
        [[mark for _, mark in row] for row in tiles],
        NOTE,
    )


def _tile(peers: list[Record]) -> tuple[str, str]:
    """Return the fastest algorithm and its mark; empty where no two can be compared."""
    ordered = ranked(peers)
    if len(ordered) < 2:
        return "", ""
    standing = place(ordered[0], peers)
    return scheme_name(ordered[0]), "~" if standing == TIED else "" if standing else "?"
