"""What goes into the tables about single operations: collectives, and the fabric against plain MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import NONE, digits, interval, rate, seconds, volume
from hpcdl.report.seeds import scheme_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.analysis.scaling import Record

SAID: Final = {True: "yes", False: "NO", None: "not checked"}
RAW: Final = "raw"
"""The aggregation that a pairwise case names when it calls mpi4py without the fabric."""


def collectives(records: Sequence[Record]) -> Section:
    """One table per collective and number of ranks: by size, every algorithm, with its share of the best."""
    tables = [
        Table(
            f"{name}, {ranks} ranks, {dtype or 'bytes'}",
            (
                "algorithm",
                "size",
                "p50",
                "95 %",
                "p99",
                "max",
                "algbw",
                "busbw",
                "of best",
                "of native",
                "correct",
            ),
            [_row(record, rows) for size in sizes for record in rows if record["message_bytes"] == size],
        )
        for (name, ranks, dtype), rows in _grouped(records, "collective").items()
        for sizes in [sorted({record["message_bytes"] or 0 for record in rows})]
    ]
    note = (
        "Times are of the slowest rank, quantiles over iterations. algbw = size / p50; busbw as nccl-tests "
        "defines it. Of best and of native: their p50 by this one's."
    )
    return Section("Collectives", [note] if tables else [], tables=tables)


def _row(record: Record, rows: Iterable[Record]) -> tuple[str, ...]:
    peers = [other for other in rows if other["message_bytes"] == record["message_bytes"]]
    times = [time for other in peers if (time := other["time_p50_seconds"]) and other["correct"] is not False]
    native = [time for other in peers if other["aggregation"] == "native" and (time := other["time_p50_seconds"])]
    return (
        scheme_name(record),
        volume(record["message_bytes"]),
        seconds(record["time_p50_seconds"]),
        interval(record["time_p50_low_seconds"], record["time_p50_high_seconds"], seconds),
        seconds(record["time_p99_seconds"]),
        seconds(record["time_max_seconds"]),
        rate(record["algbw_bytes_per_second"]),
        rate(record["busbw_bytes_per_second"]),
        _share(min(times, default=None), record),
        _share(min(native, default=None), record),
        SAID[record["correct"]],
    )


def _share(reference: float | None, record: Record) -> str:
    time = record["time_p50_seconds"]
    return digits(reference / time) if reference and time else NONE


def overhead(records: Sequence[Record]) -> Section:
    """What handing an operation to the fabric costs: each pairwise case beside the same one in plain MPI."""
    tables = []
    for (name, ranks, dtype), rows in _grouped(records, "pairwise").items():
        plain = {row["message_bytes"]: row["time_p50_seconds"] for row in rows if row["aggregation"] == RAW}
        shown = [
            (
                scheme_name(record),
                volume(record["message_bytes"]),
                seconds(time := record["time_p50_seconds"]),
                seconds(record["time_p99_seconds"]),
                rate(record["algbw_bytes_per_second"]),
                seconds(time - raw) if (raw := plain.get(record["message_bytes"])) and time else NONE,
            )
            for record in sorted(rows, key=lambda row: row["message_bytes"] or 0)
        ]
        header = ("program", "size", "p50", "p99", "algbw", "over plain MPI")
        tables.append(Table(f"{name}, {ranks} ranks, {dtype or 'bytes'}", header, shown))
    return Section("Pairwise exchange and fabric overhead", tables=tables)


def _grouped(records: Iterable[Record], kind: str) -> dict[tuple[str, int, Any], list[Record]]:
    groups: dict[tuple[str, int, Any], list[Record]] = {}
    for record in records:
        if record.get("kind") == kind:
            key = (str(record["collective"] or kind), int(record["ranks"]), record["dtype"])
            groups.setdefault(key, []).append(record)
    return groups
