"""Logs of the OSU micro-benchmarks 5 to 7, also with ``-f`` (all columns), ``-z`` (quantiles) and ``-c`` (checks).

They state neither the number of ranks nor the library. A reduce-scatter's size is that of the whole vector.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpcdl.trace.log import COLLECTIVES, PING_PONG, STREAM, Line, Log, Row
from hpcdl.trace.recorder import Scalar

TOOL: Final = "osu"
MARK: Final = re.compile(r"^\s*#\s*OSU (?:MPI|NCCL)\S*\s+(.+) v(\d[\w.]*)$")
OF_PAIRS: Final = {"Latency Test": PING_PONG, "Bandwidth Test": STREAM}
"""Operation by the title of a benchmark of two ranks."""
COLUMN: Final = re.compile(r"P\d+ Tail \w+\([^)]+\)|(?:(?:Avg|Min|Max) )?\w+ ?\([^)]+\)|\w+")
TIMES: Final = ("Avg Latency(us)", "Latency (us)", "Latency(us)", "Bandwidth (MB/s)", "Bandwidth(MB/s)")
"""Columns of the time, or of the bandwidth, which tells it."""
FIELDS: Final = {
    "Min Latency(us)": "rank_min_seconds",
    "Max Latency(us)": "rank_max_seconds",
    "P95 Tail Lat(us)": "time_p95_seconds",
    "P99 Tail Lat(us)": "time_p99_seconds",
}
"""Field of the case by column."""
WORDS: Final = ("Size", "Iterations", "Validation")
"""Columns without decimals."""


def read(_: Path, lines: Sequence[Line]) -> Log:
    """Read a log. Raises ValueError, led by the line."""
    sections, columns, operation, versions = list[tuple[Line, list[Row]]](), list[str](), "", dict[str, None]()
    for line in lines:
        if title := MARK.match(line.text):
            sections.append((line, []))
            columns, versions[title[2]] = [], None
            name = title[1].lower().removesuffix(" latency test")
            operation = OF_PAIRS.get(title[1]) or COLLECTIVES.get(name, "")
            if not operation:
                raise line.error(f"{title[1]!r} is not read; known are {', '.join([*OF_PAIRS, *COLLECTIVES])}")
        elif sections and re.match(r"\s*#\s*Size\s", line.text):
            columns = COLUMN.findall(line.text)
        elif sections and re.match(r"\s*\d+(\s|$)", line.text):
            sections[-1][1].append(_row(line, operation, columns))
    for line, rows in sections:
        if not rows:
            raise line.error("no times follow: the log is cut, or the benchmark failed")
    every = [row for _, rows in sections for row in rows]
    return Log("osu", "means over repetitions and ranks", every, ", ".join(versions), of_parts=True)


def _row(line: Line, operation: str, columns: Sequence[str]) -> Row:
    cells = line.cells(columns)
    numbers = {name: line.number_of(word, "2") for name, word in cells.items() if name not in WORDS}
    value = next((numbers[name] for name in TIMES if numbers.get(name)), None)
    if value is None:
        raise line.error(f"no time in the columns {', '.join(columns)}")
    fields: dict[str, Scalar] = {name: numbers[column] / 1e6 for column, name in FIELDS.items() if column in cells}
    if cells.get("Validation", "N/A") != "N/A":
        fields["correct"] = cells["Validation"] == "Pass"
    if "Iterations" in cells:
        fields["measured_steps"] = int(line.number_of(cells["Iterations"]))
    size = int(cells["Size"])
    seconds = size / value / 1e6 if operation == STREAM else value / 1e6
    return Row(line, operation, size, [seconds], 2 * (operation in {PING_PONG, STREAM}), fields)
