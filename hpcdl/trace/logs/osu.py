"""Logs of the OSU micro-benchmarks 5 to 7, also with ``-f`` (all columns), ``-z`` (quantiles) and ``-c`` (checks).

They state neither the number of ranks nor the library. A reduce-scatter's size is that of the whole vector.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpcdl.trace.log import COLLECTIVES, PING_PONG, STREAM, Format, Line, Log, Row
from hpcdl.trace.recorder import Scalar

TITLE: Final = re.compile(r"^\s*#\s*OSU (?:MPI|NCCL)\S*\s+(.+) v(\d[\w.]*)$")
OF_PAIRS: Final = {"Latency Test": PING_PONG, "Bandwidth Test": STREAM}
"""Operation by the title of a benchmark of two ranks."""
FIELDS: Final = {
    "Min Latency(us)": "rank_min_seconds",
    "Max Latency(us)": "rank_max_seconds",
    "P50 Tail Lat(us)": "tail_p50_seconds",
    "P90 Tail Lat(us)": "tail_p90_seconds",
    "P99 Tail Lat(us)": "time_p99_seconds",
}
"""Field of the case by column."""
TIMES: Final = ("Avg Latency(us)", "Latency (us)", "Latency(us)", "Bandwidth (MB/s)", "Bandwidth(MB/s)")
"""Columns of the time, or of the bandwidth, which tells it."""
OTHERS: Final = ("Size", "Iterations", "Validation")
"""Columns without decimals."""


def read(_: Path, lines: Sequence[Line]) -> Log:
    """Read a log. Raises ValueError, led by the line."""
    rows, versions, operation, columns, begun = list[Row](), dict[str, None](), "", list[str](), lines[0]
    for line in [*lines, Line(len(lines) + 1, "")]:
        title = TITLE.match(line.text)
        if (
            operation
            and (title or line.number > len(lines))
            and not (rows and rows[-1].line.number > begun.number)
        ):
            raise begun.error("no times follow: the log is cut, or the benchmark failed")
        if title:
            begun, columns, name = line, [], title[1].lower().removesuffix(" latency test")
            operation = OF_PAIRS.get(title[1]) or COLLECTIVES.get(name, "")
            versions[title[2]] = None
            if not operation:
                raise line.error(f"{title[1]!r} is not read; known are {', '.join([*OF_PAIRS, *COLLECTIVES])}")
        elif operation and re.match(r"\s*#\s*Size\s", line.text):
            columns = re.split(r"\s{2,}|\t+", line.text.strip().lstrip("# "))
        elif operation and re.match(r"\s*\d+(\s|$)", line.text):
            rows.append(_row(line, operation, columns))
    return Log("osu", "means over repetitions and ranks", rows, ", ".join(versions), of_parts=True)


def _row(line: Line, operation: str, columns: Sequence[str]) -> Row:
    cells = line.cells(columns)
    numbers = {name: line.number_of(word, "2") for name, word in cells.items() if name not in OTHERS}
    value = next((numbers[name] for name in TIMES if numbers.get(name)), None)
    if value is None:
        raise line.error(f"no time in the columns {', '.join(columns)}")
    fields: dict[str, Scalar] = {name: numbers[column] / 1e6 for column, name in FIELDS.items() if column in cells}
    if "Validation" in cells:
        fields["correct"] = cells["Validation"] == "Pass"
    size, of_pair = int(cells["Size"]), operation in {PING_PONG, STREAM}
    seconds = size / value / 1e6 if operation == STREAM else value / 1e6
    return Row(line, operation, size, [seconds], 2 if of_pair else 0, fields)


FORMAT: Final = Format("osu", TITLE, read)
