"""``hpcdl bench``: time a collective over message sizes, from one command line."""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.job import from_shell, in_job
from hpcdl.commands.parts.parser import Command, path, whole_number

if TYPE_CHECKING:
    from hpcdl.analysis.run.record import Record
    from hpcdl.trace.run import Run

MAX_DIGITS: Final = 16
MIN_FACTOR: Final = 2
MAX_INTERPOLATED: Final = 100
"""Repetitions up to which the 99 % quantile lies between the two longest."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments and options."""
    parser.add_argument(
        "collective",
        nargs="?",
        default="allreduce",
        metavar="COLLECTIVE",
        help="allreduce (default), reduce_scatter, allgather, all_to_all, broadcast or reduce",
    )
    parser.add_argument("-b", dest="least", default="8", metavar="SIZE", help="smallest size (default: 8)")
    parser.add_argument("-e", dest="most", default="4M", metavar="SIZE", help="largest size (default: 4M)")
    parser.add_argument(
        "-f", dest="factor", type=whole_number, default=2, metavar="N", help="between sizes (default: 2)"
    )
    parser.add_argument(
        "-a",
        "--aggregation",
        default="native,ring",
        metavar="NAMES",
        help="schemes, of `hpcdl list aggregation` (default: native,ring)",
    )
    parser.add_argument("-n", "--ranks", type=whole_number, metavar="RANKS", help="ranks (default: one per core)")
    parser.add_argument("-r", "--repetitions", type=whole_number, default=20, metavar="N", help="(default: 20)")
    parser.add_argument("-d", "--dtype", default="float32", metavar="TYPE", help="float32 (default) or float64")
    parser.add_argument(
        "-o", dest="folder", type=path, metavar="DIR", help="keep the run here (default: runs/bench-TIME)"
    )
    parser.add_argument("--resume", action="store_true", help="measure the rows that the run in DIR lacks")
    parser.set_defaults(
        suite=Path("bench"),
        overrides=[],
        case=[],
        launches=1,
        mix_environments=False,
        case_timeout=None,
        show=lambda line: print(f"# {line}", flush=True),
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.launch.process import launched

    options.text = _suite(options)
    options.finished = partial(_print, options.repetitions, [])
    return in_job(options) if launched(os.environ) else from_shell(options, options.given)


def _suite(options: argparse.Namespace) -> str:
    """Return the text of a suite of one case per size and scheme, in the order of the rows."""
    keys = {
        "kind": "collective",
        "collective": options.collective,
        "message_bytes": _sizes(options),
        "aggregation": options.aggregation.split(","),
        "ranks": options.ranks or "all",
        "repetitions": options.repetitions,
        "dtype": options.dtype,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    return "\n".join(['[suite]\nname = "bench"\n[[case]]', *lines, ""])


def _sizes(options: argparse.Namespace) -> list[int]:
    """Return the sizes in bytes. Raises UsageError."""
    from hpcdl.cases.keys.key import size
    from hpcdl.suite import UsageError

    ends = []
    for name, text in (("-b", options.least), ("-e", options.most)):
        found = int(text) if text.isdecimal() and len(text) < MAX_DIGITS else size(text)
        if found is None:
            raise UsageError(f"{name} {text}: must be a size in bytes, such as 8, 64K or 128M")
        ends.append(found)
    least, most = ends
    if options.factor < MIN_FACTOR or not 1 <= least <= most:
        given = f"-b {options.least} -e {options.most} -f {options.factor}"
        raise UsageError(f"{given}: sizes grow from at least 1 by a factor of at least {MIN_FACTOR}")
    sizes = [least]
    while sizes[-1] * options.factor <= most:
        sizes.append(sizes[-1] * options.factor)
    return sizes


def _print(repetitions: int, printed: list[Path], part: Path) -> None:
    """Print the row of a finished case; before the first of ``printed`` the headings."""
    from hpcdl.analysis.run.cores import marked
    from hpcdl.analysis.run.launches import launches
    from hpcdl.analysis.run.pooling import pool
    from hpcdl.analysis.run.scaling import records
    from hpcdl.trace.schema import read

    run = read(part)
    (record,) = marked(run, records(launches(pool([run]))))
    if not printed:
        print("\n".join(headings(run, record, repetitions)))
    printed.append(part)
    print(row(record), flush=True)


def headings(run: Run, record: Record, repetitions: int) -> list[str]:
    """Return comment lines: the setting, the meaning of the columns, and their names."""
    from hpcdl.report.formats.cells import plural

    library = run.environment["mpi"]
    place = f"{plural(record.ranks, 'rank')} on {plural(record.nodes, 'host')}"
    sample = plural(repetitions, "repetition")
    if repetitions <= MAX_INTERPOLATED:
        sample += " (p99 lies between the two longest)"
    return [
        f"# {record.collective}: {place}, {record.dtype}, {library['library']} {library['version']}",
        f"# times in us of the slowest rank; quantiles over {sample}, each the mean of so many operations (ops)",
        f"# algbw and busbw in GB/s, as nccl-tests defines them; run folder {run.path.parent.parent}",
        f"#{'bytes':>11}  {'scheme':<20}{'ops':>6}{'p50':>11}{'p99':>11}{'algbw':>10}{'busbw':>10}  correct",
    ]


def row(record: Record) -> str:
    """Return a line like those of OSU's benchmarks and nccl-tests, for eyes and awk; its marks are at the end."""
    shown = {"disturbed": f"DISTURBED: {record.disturbed}", "oversubscribed": "OVERSUBSCRIBED: ranks share cores"}
    marks = [text for mark, text in shown.items() if mark in record.marks]
    begin = f"{record.message_bytes:>12}  {record.aggregation:<20}{record.operations or 1:>6}"
    times = "".join(f"{1e6 * (time or 0):>11.2f}" for time in (record.time_p50_seconds, record.time_p99_seconds))
    known = (record.algbw_bytes_per_second, record.busbw_bytes_per_second)
    rates = "".join(f"{(rate or 0) / 1e9:>10.3f}" for rate in known)
    return "  ".join([f"{begin}{times}{rates}", "yes" if record.correct else "NO", *marks])


COMMAND: Final = Command(
    15,
    "time a collective over message sizes",
    "Time a collective by several schemes over message sizes, and print a line for each when it is measured. The "
    "results are checked. The run folder has the trace and the report. Outside a launcher hpcdl starts mpirun.",
    arguments,
    execute,
    "hpcdl bench allreduce -b 8 -e 128M -f 2 -a ring,native",
)
