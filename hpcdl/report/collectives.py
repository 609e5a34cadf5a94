"""What goes into the tables about single operations: who is fastest at which size, measured and simulated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.report.document import Section, Table
from hpcdl.report.names import scheme_name
from hpcdl.report.quantities import NONE, digits, interval, percent, rate, seconds, volume

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hpcdl.analysis.scaling import Record

SAID: Final = {True: "yes", False: "NO", None: "not checked"}
BEST: Final = "fastest"
TIED: Final = "tied"
MEASURED: Final = (
    *(
        "size",
        "algorithm",
        "p50",
        "95 %",
        "p95",
        "p99",
        "max",
        "algbw",
        "busbw",
        "of best",
        "of native",
        "fastest",
    ),
    "correct",
)
USUAL: Final = "trace=steps"
"""The default ``configuration`` of a single operation."""
SIMULATED: Final = (
    "size",
    "algorithm",
    "simulated",
    "algbw",
    "busbw",
    "of best",
    "fastest",
    "closed form",
    "share",
    "simulated in",
)
NOTE: Final = (
    "Times are of the slowest rank, quantiles over iterations. algbw = size / p50; busbw as nccl-tests "
    "defines it. Of best, of native: the other's p50 by this one's, so that 2.00 is twice as fast. Tied: the "
    "interval overlaps that of the fastest; without intervals nobody is named."
)
SIMULATED_NOTE: Final = (
    "Simulated: the same program in virtual time on a model of the network, nothing was measured. Closed "
    "form: the cost that the algorithm's docstring states, with the model's numbers, where all messages travel "
    "alike; share: closed form by simulated; simulated in: the time that the simulation itself took."
)


class Group(NamedTuple):
    """What may be compared: one collective on as many ranks, all measured or all on one simulated network."""

    collective: str
    ranks: int
    dtype: str
    network: str
    configuration: str

    @property
    def title(self) -> str:
        """What it is, in words."""
        what = f"{self.collective}, {self.ranks} ranks, {self.dtype or 'bytes'}"
        own = "" if self.configuration == USUAL else self.configuration
        mark = f"SIMULATED on {self.network}: " if self.network else ""
        return mark + ", ".join(filter(None, (what, own.removeprefix(f"simulated on {self.network}, "))))


def grouped(records: Iterable[Record], kind: str) -> dict[Group, list[Record]]:
    """Records of a kind, by what may be compared; within a group by size."""
    groups: dict[Group, list[Record]] = {}
    for record in sorted(records, key=lambda one: one["message_bytes"] or 0):
        if record.get("kind") == kind:
            words = (str(record.get(name) or "") for name in ("dtype", "network", "configuration"))
            group = Group(str(record["collective"] or kind), int(record["ranks"]), *words)
            groups.setdefault(group, []).append(record)
    return dict(sorted(groups.items(), key=lambda one: (one[0].network, one[0].collective, one[0].ranks)))


def sizes(rows: Sequence[Record]) -> dict[int, list[Record]]:
    """The records of a group by size, ascending."""
    found: dict[int, list[Record]] = {}
    for record in rows:
        found.setdefault(record["message_bytes"] or 0, []).append(record)
    return found


def collectives(records: Sequence[Record]) -> Section:
    """One table per group: by size, every algorithm, with its share of the best."""
    groups = grouped(records, "collective")
    tables = [_table(group, rows) for group, rows in groups.items()]
    notes = [
        *([NOTE] if any(not group.network for group in groups) else []),
        *_windows([record for rows in groups.values() for record in rows]),
        *_copies([record for rows in groups.values() for record in rows]),
        *([SIMULATED_NOTE] if any(group.network for group in groups) else []),
    ]
    return Section("Collectives", notes, tables=tables)


def _windows(records: Sequence[Record]) -> list[str]:
    """How well the ranks began together where they did so at an agreed moment."""
    windows = [
        record for record in records if record.get("start") == "window" and record.get("start_lead_seconds")
    ]
    if not windows:
        return []
    error = max(record["start_error_seconds"] for record in windows)
    late = max(record["starts_late"] for record in windows)
    said = (
        f"start=window: ranks began at an agreed moment of rank 0's clock, known to {seconds(error)}; in at most "
        f"{percent(late, 1)} of a case's repetitions a rank came too late and began at once."
    )
    return [said]


def _copies(records: Sequence[Record]) -> list[str]:
    """Who copies where operand and result are apart."""
    apart = [record for record in records if record.get("placement") == "out_of_place"]
    copying = dict.fromkeys(scheme_name(record) for record in apart if record.get("copied"))
    if not copying:
        return []
    said = (
        "placement=out_of_place: the library's calls read one vector and write another. In place by nature, so "
        f"that the operand is copied first, within the time: {', '.join(copying)}."
    )
    return [said]


def _table(group: Group, rows: Sequence[Record]) -> Table:
    by_size = sizes(rows).values()
    if group.network:
        cells = [_simulated(record, peers) for peers in by_size for record in peers]
        return Table(group.title, SIMULATED, cells, 2).without_empty()
    cells = [_measured(record, peers) for peers in by_size for record in peers]
    return Table(group.title, MEASURED, cells, 2).without_empty()


def _measured(record: Record, peers: Sequence[Record]) -> tuple[str, ...]:
    native = [peer for peer in peers if peer["aggregation"] == "native"]
    return (
        volume(record["message_bytes"]),
        _algorithm(record),
        seconds(record["time_p50_seconds"]),
        interval(record["time_p50_low_seconds"], record["time_p50_high_seconds"], seconds),
        seconds(record.get("time_p95_seconds")),
        seconds(record["time_p99_seconds"]),
        seconds(record["time_max_seconds"]),
        rate(record["algbw_bytes_per_second"]),
        rate(record["busbw_bytes_per_second"]),
        _share(_right(peers), record),
        _share(_right(native), record),
        place(record, peers),
        SAID[record["correct"]],
    )


def _simulated(record: Record, peers: Sequence[Record]) -> tuple[str, ...]:
    time, stated = record["time_p50_seconds"], record["predicted_seconds"]
    return (
        volume(record["message_bytes"]),
        _algorithm(record),
        seconds(time),
        rate(record["algbw_bytes_per_second"]),
        rate(record["busbw_bytes_per_second"]),
        _share(_right(peers), record),
        place(record, peers),
        seconds(stated),
        digits(stated / time) if stated is not None and time else NONE,
        seconds(record.get("simulation_seconds")),
    )


def _algorithm(record: Record) -> str:
    """The scheme, and which one it chose where it chooses."""
    return " = ".join(filter(None, (scheme_name(record), record.get("chosen"))))


def _right(records: Iterable[Record]) -> list[Record]:
    """Those with a time and without a wrong result, the fastest first."""
    kept = [one for one in records if one["time_p50_seconds"] and one["correct"] is not False]
    return sorted(kept, key=lambda one: one["time_p50_seconds"])


def _share(ordered: Sequence[Record], record: Record) -> str:
    time = record["time_p50_seconds"]
    return digits(ordered[0]["time_p50_seconds"] / time) if ordered and time else NONE


def place(record: Record, peers: Sequence[Record]) -> str:
    """``fastest``, or ``tied`` with it, among the records of one size; empty for all others.

    Measured times tie when their intervals overlap; simulated ones have no noise and tie when equal.
    """
    ordered = _right(peers)
    if len(ordered) > 1 and not ordered[0].get("network") and ordered[0]["time_p50_high_seconds"] is None:
        return ""  # without its interval nobody knows
    tied = [one for one in ordered if _ties(ordered[0], one)]
    if not any(one is record for one in tied):
        return ""
    return TIED if len(tied) > 1 else BEST if len(ordered) > 1 else ""


def _ties(first: Record, other: Record) -> bool:
    if first.get("network"):
        return math.isclose(first["time_p50_seconds"], other["time_p50_seconds"], rel_tol=1e-6)
    low = other["time_p50_low_seconds"]
    return low is None or bool(low <= first["time_p50_high_seconds"])


def fastest(records: Sequence[Record], crowded: Collection[int] = ()) -> list[str]:
    """Per group a sentence: who is fastest from which size to which; ``crowded`` numbers of ranks share cores."""
    lines = []
    for group, rows in grouped(records, "collective").items():
        runs: list[tuple[str, list[str]]] = []
        for size, peers in sizes(rows).items():
            names = [scheme_name(one) for one in _right(peers) if place(one, peers)]
            who = f"{' or '.join(names)} (tied)" if len(names) > 1 else "".join(names) or "undecided"
            if not runs or runs[-1][0] != who:
                runs.append((who, []))
            runs[-1][1].append(volume(size))
        if any(who != "undecided" for who, _ in runs):
            said = "; ".join(f"{who} {_from_to(where)}" for who, where in runs)
            doubt = "; OVERSUBSCRIBED: ranks share cores" if group.ranks in crowded and not group.network else ""
            lines.append(f"{group.title}: fastest {said}{doubt}.")
    return lines


def _from_to(names: Sequence[str]) -> str:
    return f"at {names[0]}" if len(names) == 1 else f"from {names[0]} to {names[-1]}"


def crossing(records: Sequence[Record]) -> Section:
    """In short: per group one row per size, one column per algorithm; * is the fastest, ~ is tied with it."""
    tables = []
    for group, rows in grouped(records, "collective").items():
        names = list(dict.fromkeys(scheme_name(one) for one in rows))
        cells = []
        for size, peers in sizes(rows).items():
            shown = {scheme_name(one): _marked(one, peers) for one in peers}
            cells.append((volume(size), *(shown.get(name, NONE) for name in names)))
        tables.append(Table(group.title, ("size", *names), cells))
    return Section("Collectives: median time, * fastest, ~ tied with it", tables=tables)


def _marked(record: Record, peers: Sequence[Record]) -> str:
    mark = "WRONG" if record["correct"] is False else {BEST: "*", TIED: "~"}.get(place(record, peers), "")
    return f"{seconds(record['time_p50_seconds'])} {mark or ' '}"


def pairwise(records: Sequence[Record]) -> Section:
    """Exchanges between two ranks, by size."""
    header = ("size", "program", "p50", "95 %", "p99", "max", "algbw", "correct")
    tables = [
        Table(
            group.title,
            header,
            [
                (
                    volume(record["message_bytes"]),
                    scheme_name(record),
                    seconds(record["time_p50_seconds"]),
                    interval(record["time_p50_low_seconds"], record["time_p50_high_seconds"], seconds),
                    seconds(record["time_p99_seconds"]),
                    seconds(record["time_max_seconds"]),
                    rate(record["algbw_bytes_per_second"]),
                    SAID[record["correct"]],
                )
                for record in rows
            ],
            2,
        )
        for group, rows in grouped(records, "pairwise").items()
    ]
    return Section("Pairwise exchange", tables=tables)
