"""Logs of the Intel MPI Benchmarks (IMB-MPI1): collectives and PingPong; other sections are left out.

Times are those of the slowest rank (``t_max``). They state neither hosts nor library.
"""

import datetime as dt
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hpcdl.trace.log import COLLECTIVES, PING_PONG, Line, Log, Row
from hpcdl.trace.recorder import Scalar

TOOL: Final = "imb"
MARK: Final = re.compile(r"^\s*#\s+(?:Intel ?\(R\) MPI Benchmarks (.+?)(?:,.*)?|Benchmarking (\S+))\s*$")
FACT: Final = re.compile(r"^\s*# (Date|#processes|MPI_Datatype for reductions)\s*[:=]\s*(.+)$")
SECTIONS: Final = COLLECTIVES | {"pingpong": PING_PONG}
"""Operation by the name of a section, in lower case."""
SUMS: Final = ("allreduce", "reduce", "reduce_scatter")
FIELDS: Final = {"t_min[usec]": "rank_min_seconds", "t_avg[usec]": "rank_mean_seconds"}
"""Field of the case by column."""


def read(_: Path, lines: Sequence[Line]) -> Log:
    """Read a log. Raises ValueError, led by the line."""
    rows, version, section, columns, facts = list[Row](), "", "", list[str](), dict[str, str]()
    for line in lines:
        if title := MARK.match(line.text):
            version, section, columns = title[1] or version, SECTIONS.get((title[2] or "").lower(), ""), []
        elif fact := FACT.match(line.text):
            facts[fact[1]] = fact[2].strip()
        elif section and line.text.lstrip().startswith("#bytes"):
            columns = line.text.split()
        elif section and re.match(r"\s*\d+(\s|$)", line.text) and "time-out" not in line.text:
            is_float = section in SUMS and facts.get("MPI_Datatype for reductions") == "MPI_FLOAT"
            rows.append(_row(line, section, columns, int(facts.get("#processes", 0)), "float32" * is_float))
    date = ""
    with suppress(ValueError):  # in another language
        date = dt.datetime.strptime(facts.get("Date", ""), "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007
    return Log("imb", "means over repetitions of the slowest rank", rows, version, date, of_parts=True)


def _row(line: Line, operation: str, columns: Sequence[str], ranks: int, dtype: str) -> Row:
    cells = line.cells(columns)
    numbers = {name: line.number_of(word, "2") for name, word in cells.items() if not name.startswith("#")}
    fields: dict[str, Scalar] = {name: numbers[column] / 1e6 for column, name in FIELDS.items() if column in cells}
    fields |= {"dtype": dtype or None, "measured_steps": int(line.number_of(cells["#repetitions"]))}
    seconds = (numbers["t[usec]"] if operation == PING_PONG else numbers["t_max[usec]"]) / 1e6
    return Row(line, operation, int(cells["#bytes"]), [seconds], ranks, fields)
