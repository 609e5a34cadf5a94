"""Series of other tools in a CSV file with the columns ``name``, ``date`` and ``value``, as runs: one a date.

Rows of one name and date are launches of one job. The heading of the values may be their unit instead: one of
time, or a rate such as ``GB/s``, of which more is better. A date without an offset is taken as UTC.
"""

import csv
import datetime as dt
import math
from pathlib import Path
from typing import Final

from hpcdl.analysis.over_time.series import CaseSeries, RunSeries
from hpcdl.trace.files import read_csv
from hpcdl.trace.recorder import TraceError

UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds by the heading of the values."""


def read_series(path: Path) -> list[RunSeries]:
    """Return the runs in a file. Raises TraceError, in one line that names the file and the number of the line."""
    runs, launches, line = dict[tuple[str, int], list[CaseSeries]](), dict[tuple[str, str], int](), 1
    try:
        reader = read_csv(path)
        *head, unit = [cell.strip() for cell in next(filter(None, reader), [])] or [""]
        line = reader.line_num or 1
        if head != ["name", "date"] or not (unit == "value" or unit in UNITS or unit.endswith("/s")):
            raise ValueError(f"must be name,date,value, or {', '.join(UNITS)} or a rate, GB/s, instead of value")  # noqa: TRY301
        higher = unit.endswith("/s")
        # series are times, of which less is better
        measure = f"inverse {unit}" if higher else "time_p50_seconds" if unit in UNITS else unit
        for row in filter(None, reader):
            line = reader.line_num
            name, date, text = (cell.strip() for cell in row)
            began, value = dt.datetime.fromisoformat(date), float(text) * UNITS.get(unit, 1.0)
            if not 0 < value < math.inf:
                raise ValueError(f"{text}: must be a number above 0")  # noqa: TRY301
            date = (began if began.tzinfo else began.replace(tzinfo=dt.UTC)).isoformat()
            launch = launches[name, date] = launches.get((name, date), -1) + 1
            values = {measure: 1 / value if higher else value}
            case = CaseSeries(path.stem, name, "{}", "series", 0, None, "", values, "", {}, {})
            runs.setdefault((date, launch), []).append(case)
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{path}: line {line}: {str(error).removeprefix(f'{path}: ')}") from None
    return [
        RunSeries(f"{path}, {date}", date, date, path.stem, True, {}, {}, tuple(cases), {}, {}, 0)
        for (date, _), cases in runs.items()
    ]
