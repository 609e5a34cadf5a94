"""Charts of collectives: the fastest algorithm, bus bandwidth, and time over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.formats.cells import rate, seconds, volume, whole
from hpcdl.report.formats.charts import Axis, Lines, Point, Series, Tiles
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.operations import TIED, grouped, place, ranked, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.operations import Group


BEST_NOTE: Final = (
    "The algorithm of the lowest median time. Tied (~): a test of the launches does not tell it from "
    "another algorithm. Inconclusive (?): one launch."
)


def best_scheme(findings: Findings) -> list[Tiles]:
    """Return one chart per collective with several sizes or numbers of ranks."""
    families: dict[Group, dict[int, dict[int, list[Record]]]] = {}
    for group, rows in grouped(findings.records, "collective").items():
        families.setdefault(group._replace(ranks=0), {})[group.ranks] = sizes(rows)
    made = [_best_chart(family, by_ranks) for family, by_ranks in families.items()]
    return [row for row in made if len(row.rows) * len(row.columns) > 1 and len(_names(row)) > 1]


def _names(tiles: Tiles) -> set[str]:
    return {name for row in tiles.names for name in row} - {""}


def _best_chart(family: Group, by_ranks: dict[int, dict[int, list[Record]]]) -> Tiles:
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
        BEST_NOTE,
    )


def _tile(peers: list[Record]) -> tuple[str, str]:
    """Return the fastest algorithm and its mark; empty where no two can be compared."""
    ordered = ranked(peers)
    if len(ordered) < 2:
        return "", ""
    standing = place(ordered[0], peers)
    return scheme_name(ordered[0]), "~" if standing == TIED else "" if standing else "?"


BANDWIDTH_NOTE: Final = (
    "Bus bandwidth as nccl-tests defines it; bars are 95 % intervals. Slowest link: no algorithm exceeds its "
    "rate by more than noise."
)


def bus_bandwidth(findings: Findings) -> list[Lines]:
    """Return one chart per group of comparable collectives with several sizes; the most ranks first."""
    made = [
        _bandwidth_chart(group, rows, findings) for group, rows in grouped(findings.records, "collective").items()
    ]
    return [row for row in reversed(made) if row]


def _bandwidth_chart(group: Group, rows: Sequence[Record], findings: Findings) -> Lines | None:
    points: dict[str, list[Point]] = {}
    for record in rows:
        if record["busbw_bytes_per_second"] and record["correct"] is not False:
            points.setdefault(scheme_name(record), []).append(_point(record))
    sizes = sorted({point.x for measured in points.values() for point in measured})
    if len(sizes) < 2:
        return None
    series = [Series(name, measured) for name, measured in points.items()]
    series.sort(key=lambda point: (-point.points[-1].x, -point.points[-1].y))
    bound = _bound(group, rows, findings)
    if bound:
        series.append(Series("slowest link", [Point(sizes[0], bound), Point(sizes[-1], bound)], "reference"))
    note = BANDWIDTH_NOTE if bound else BANDWIDTH_NOTE.partition(" Slowest ")[0]
    return Lines(f"Bus bandwidth: {group.title}", Axis("size", volume, 2), Axis("busbw", rate, 10), series, note)


def _point(record: Record) -> Point:
    """Return the bandwidth; its interval follows from the time's."""
    size, value, middle = (
        record[name] for name in ("message_bytes", "busbw_bytes_per_second", "time_p50_seconds")
    )
    low, high = record.get("time_p50_low_seconds"), record.get("time_p50_high_seconds")
    if not low or not high:
        return Point(size, value)
    return Point(size, value, value * middle / high, value * middle / low)


def _bound(group: Group, rows: Sequence[Record], findings: Findings) -> float | None:
    """Return the rate of the slowest link (bytes/s) of emulated hosts with one rank each; None for others."""
    first = rows[0]
    environment = findings.run.environments.get(str(first.get("environment_key")), findings.run.environment)
    emulated = environment.get("emulated")
    if group.network or not emulated or first.get("nodes") != group.ranks:
        return None
    hosts = {str(rank.get("hostname")) for rank in (environment.get("ranks") or ())[: group.ranks]}
    rates = [each for host, each in emulated["bytes_per_second"].items() if host in hosts]
    return float(min(rates)) if len(rates) == group.ranks else None


def collective_time(findings: Findings) -> list[Lines]:
    """Return one chart per collective and size with several numbers of ranks, the largest sizes first."""
    families: dict[tuple[Group, int], list[Record]] = {}
    for group, rows in grouped(findings.records, "collective").items():
        for record in ranked(rows):
            families.setdefault((group._replace(ranks=0), record["message_bytes"] or 0), []).append(record)
    made = [
        _time_chart(family, size, rows)
        for (family, size), rows in sorted(families.items(), key=lambda row: -row[0][1])
    ]
    return [row for row in made if len(row.x.ticks) > 1]


def _time_chart(family: Group, size: int, rows: list[Record]) -> Lines:
    points: dict[str, list[Point]] = {}
    for record in sorted(rows, key=lambda row: int(row["ranks"])):
        bounds = (record.get("time_p50_low_seconds"), record.get("time_p50_high_seconds"))
        point = Point(int(record["ranks"]), record["time_p50_seconds"], *(bounds if None not in bounds else ()))
        points.setdefault(scheme_name(record), []).append(point)
    series = [Series(name, measured) for name, measured in points.items()]
    series.sort(key=lambda point: (-point.points[-1].x, point.points[-1].y))
    ranks = sorted({point.x for line in series for point in line.points})
    how = "" if family.network else "; bars are 95 % intervals"
    return Lines(
        f"Time over ranks: {family.titled(volume(size))}",
        Axis("ranks", whole, 2, ranks),
        Axis("time", seconds, 10),
        series,
        f"Median time of the slowest rank{how}.",
    )
