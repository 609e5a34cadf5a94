"""``hpcdl bench``: time a collective over message sizes, from one command line."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.job import from_shell, in_job
from hpcdl.commands.parts.message_sizes import declare, suite_text
from hpcdl.commands.parts.parser import Arguments, Command
from hpcdl.exit_codes import UsageError

if TYPE_CHECKING:
    from hpcdl.analysis.run.record import Record
    from hpcdl.trace.run import Run


def arguments(parser: Arguments) -> None:
    declare(parser)
    late = "seconds by which ranks come late: of each rank, such as 0,0.2,0,0, or RANK:SECONDS of one"
    parser.option("--delays SECONDS", late)
    parser.set_defaults(
        suite=Path("bench"),
        overrides=[],
        case=[],
        full=False,
        launches=1,
        mix_environments=False,
        case_timeout=None,
        show=lambda line: print(f"# {line}", flush=True),
    )


def execute(options: argparse.Namespace) -> int:
    from hpcdl.launch.process import launched

    options.text = suite_text(options, "bench")
    if options.delays:
        options.text += f"straggler = {{{_straggler(options.delays)}}}\n"
    options.finished = partial(_print, options.repetitions, [])
    return in_job(options) if launched(os.environ) else from_shell(options, options.given)


def _straggler(text: str) -> str:
    """Return the settings of a straggler: the seconds of all ranks, or RANK:SECONDS of one. Raises UsageError."""
    rank, _, pause = text.rpartition(":")
    try:
        if rank:
            return f"rank = {int(rank)}, seconds = {float(pause)}"
        return f"by_rank = {[float(word) for word in text.split(',')]}"
    except ValueError:
        form = "the seconds of all ranks, such as 0.3,0.2,0, or RANK:SECONDS of one, such as 1:0.2"
        raise UsageError(f"--delays {text}: must be {form}") from None


def _print(repetitions: int, printed: list[Path], part: Path) -> None:
    from hpcdl.analysis.run.disturbance import marked
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
    ranks = f"{plural(record.ranks, 'rank')} on {plural(record.nodes, 'host')}"
    sample = plural(repetitions, "repetition")
    if repetitions <= 100:
        sample += " (p99 lies between the two longest)"
    late = f"{'from first':>12}{'from last':>12}  late rank" if record.straggler else ""
    return [
        f"# {record.collective}: {ranks}, {record.dtype}, {library['library']} {library['version']}",
        f"# times in us of the slowest rank; quantiles over {sample}, each the mean of so many operations (ops)",
        f"# algbw and busbw in GB/s, as nccl-tests defines them; run folder {run.path.parent.parent}",
        f"#{'bytes':>11}  {'scheme':<20}{'ops':>6}{'p50':>11}{'p99':>11}{'algbw':>10}{'busbw':>10}{late}  correct",
    ]


def row(record: Record) -> str:
    """Return a line like those of OSU's benchmarks and nccl-tests, for eyes and awk; its marks are at the end."""
    shown = {"disturbed": f"DISTURBED: {record.disturbed}", "oversubscribed": "OVERSUBSCRIBED: ranks share cores"}
    marks = [text for mark, text in shown.items() if mark in record.marks]
    begin = f"{record.message_bytes:>12}  {record.aggregation:<20}{record.operations or 1:>6}"
    times = "".join(f"{1e6 * (time or 0):>11.2f}" for time in (record.time_p50_seconds, record.time_p99_seconds))
    rates_of_record = (record.algbw_bytes_per_second, record.busbw_bytes_per_second)
    rates = "".join(f"{(rate or 0) / 1e9:>10.3f}" for rate in rates_of_record)
    if record.straggler:
        arrivals = (record.from_first_arrival_seconds, record.from_last_arrival_seconds)
        rates += "".join(f"{1e6 * (time or 0):>12.2f}" for time in arrivals)
        rates += f"{'none' if record.late_rank is None else record.late_rank:>11}"
    return "  ".join([f"{begin}{times}{rates}", "yes" if record.correct else "NO", *marks])


COMMAND: Final = Command(
    15,
    "time a collective over message sizes",
    "Time a collective by several schemes over message sizes, and print a line for each when it is measured. The "
    "results are checked. The run folder has the trace and the report. Outside a launcher hpcdl starts mpirun.",
    "hpcdl bench allreduce -b 8 -e 128M -f 2 -a ring,native",
)
