"""Break-even: simulated set-ups in which compression beats the overlapped 16-bit ring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.run.break_even import WON
from hpcdl.report.formats.cells import NONE, digits, interval, percent, plural, rate, seconds
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.report.run.findings import Findings

KIND: Final = "break_even"
LINES: Final = ("model", "compression", "ranks")
"""Fields of one line of the table; its set-ups differ in bandwidth."""
NOTE: Final = (
    f"Time of a step alone, without accuracy. Won: faster by {100 * WON - 100:.0f} % or more. "
    "Simulated: encoders, decoders and sums at the prices measured on this machine, messages at those of "
    "the network. A processor computes and compresses; GPUs were not measured. Arithmetic of an exchange has a "
    "core of its own. 16-bit ring: float16 or bfloat16, the faster one, overlapped with backward as the strategy "
    "does it. Exchange: the fastest at each bandwidth. Break-even: bandwidth of equal times, with the speed-up at "
    "the nearest network; a dash: none in the range of the networks."
)


def page(findings: Findings) -> Section:
    """Return the share of winning set-ups by bandwidth, and a line per model, compressor and number of ranks."""
    records = _records(findings)
    if not records:
        return Section("Break-even")
    networks = {record["network"]: record for record in sorted(records, key=_bandwidth)}
    rows = [
        (name, rate(_bandwidth(record)), *_counts([record for record in records if record["network"] == name]))
        for name, record in networks.items()
    ]
    header = ("network", "bandwidth", "set-ups", "won over 16-bit ring", "won over dense", "best speed-up")
    tables = [Table("By bandwidth", header, rows), _by_compressor(records)]
    return Section("Break-even", [NOTE], tables=tables)


def _by_compressor(records: Sequence[Record]) -> Table:
    by_line: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        by_line.setdefault(tuple(record.get(name) for name in LINES), []).append(record)
    header = (
        *("model", "compression", "ranks", "exchange", "bytes saved", "encode", "decode"),
        *("won over 16-bit", "speed-up", "break-even with 16-bit", "with dense"),
    )
    rows = [_row(key, alike) for key, alike in by_line.items()]
    return Table("By compressor", header, rows)


def answer(findings: Findings) -> Answer | None:
    """Return in how many set-ups compression wins, and by how much."""
    records = _records(findings)
    return Answer(_line(records)) if records else None


def _records(findings: Findings) -> list[Record]:
    return [
        record for record in findings.records if record.get("kind") == KIND and record.get("compressed_seconds")
    ]


def _bandwidth(record: Mapping[str, Any]) -> float:
    return float(record["bandwidth_bytes_per_second"])


def _gains(records: Sequence[Record], other: str) -> list[float]:
    """Return the speed-up of each set-up over another exchange."""
    return [record[other] / record["compressed_seconds"] for record in records]


def _line(records: Sequence[Record]) -> str:
    gains = _gains(records, "half_precision_seconds")
    won = [gain for gain in gains if gain >= WON]
    line = (
        f"By time alone, compression beats the overlapped 16-bit ring in {len(won)} of "
        f"{plural(len(gains), 'simulated set-up')}"
    )
    if not won:
        return f"{line}; the best has {digits(max(gains))} times its speed."
    middle = digits(float(np.median(won)))
    return f"{line}: {middle} times as fast in the median of these, {digits(max(won))} at most."


def _counts(records: Sequence[Record]) -> tuple[str, ...]:
    half, dense = (_gains(records, name) for name in ("half_precision_seconds", "dense_seconds"))
    won = (str(sum(gain >= WON for gain in step)) for step in (half, dense))
    return (str(len(records)), *won, digits(max(half)))


def _row(key: Sequence[Any], alike: Sequence[Record]) -> tuple[str, ...]:
    gains = _gains(alike, "half_precision_seconds")
    first = alike[0]
    return (
        *map(str, key),
        ", ".join(dict.fromkeys(record["aggregation"] for record in alike)),
        percent(first["dense_bytes"] - first["step_bytes"], first["dense_bytes"]),
        *(seconds(first[f"{name}_seconds"]) for name in ("encode", "decode")),
        f"{sum(gain >= WON for gain in gains)} of {len(gains)}",
        interval(min(gains), max(gains)),
        _level(alike, "break_even_bytes_per_second", "half_precision_seconds"),
        _level(alike, "break_even_dense_bytes_per_second", "dense_seconds"),
    )


def _level(alike: Sequence[Record], name: str, other: str) -> str:
    """Return the break-even bandwidth near one of the networks, and the speed-up there."""
    near = next((record for record in alike if record.get(name)), None)
    return (
        f"{rate(near[name])} ({digits(near[other] / near['compressed_seconds'])}x at {near['network']})"
        if near
        else NONE
    )


SECTION: Final = Declaration(
    88, page, rows=60, terminal=lambda section: replace(section, tables=section.tables[:1]), answer=answer
)
