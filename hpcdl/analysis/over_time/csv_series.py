"""Series of other tools in a CSV file with the columns ``name``, ``date`` and ``value``, as runs: one a date.

Rows of one name and date are launches of one job. The heading of the values may be a unit of time instead (``s``,
``ms``, ``us``, ``ns``); else they are pure numbers. A date without an offset is taken as UTC.
"""

import csv
import datetime as dt
import math
from pathlib import Path
from typing import Final

from hpcdl.analysis.over_time.series import INVERSE, VALUE, CaseSeries, RunSeries
from hpcdl.trace.files import read_csv
from hpcdl.trace.recorder import TraceError

UNITS: Final = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds by the heading of the values."""


def read_series(path: Path, *, higher_is_better: bool) -> list[RunSeries]:
    """Return the runs in a file. Raises TraceError, in one line that names the file and the number of the line."""
    runs, launches, line = dict[tuple[str, int], list[CaseSeries]](), dict[tuple[str, str], int](), 0
    try:
        reader = read_csv(path)
        head = [cell.strip().lower() for cell in next(filter(None, reader), [])]
        line = reader.line_num
        if head[:2] != ["name", "date"] or len(head) != 3:
            raise ValueError("must be name,date,value")  # noqa: TRY301
        measure = INVERSE if higher_is_better else "time_p50_seconds" if head[2] in UNITS else VALUE
        for row in filter(None, reader):
            line = reader.line_num
            name, date, text = (cell.strip() for cell in row)
            began, value = dt.datetime.fromisoformat(date), float(text) * UNITS.get(head[2], 1.0)
            if not 0 < value < math.inf:
                raise ValueError(f"{text}: must be a number above 0")  # noqa: TRY301
            date = (began if began.tzinfo else began.replace(tzinfo=dt.UTC)).isoformat()
            launch = launches[name, date] = launches.get((name, date), -1) + 1
            values = {measure: 1 / value if higher_is_better else value}
            case = CaseSeries(path.stem, name, "{}", "series", 0, None, "", values, "", {}, {})
            runs.setdefault((date, launch), []).append(case)
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{path}: line {line}: {str(error).removeprefix(f'{path}: ')}") from None
    return [
        RunSeries(f"{path}, {date}", date, date, path.stem, True, {}, {}, tuple(cases), {}, {}, 0)
        for (date, _), cases in runs.items()
    ]
