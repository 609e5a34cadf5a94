"""``hpcdl bench``: time a collective over message sizes, from one command line."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcdl.commands.parts.job import from_shell, in_job
from hpcdl.commands.parts.parser import Command, path, whole_number
from hpcdl.exit_codes import FAILED, OK

if TYPE_CHECKING:
    import argparse

MAX_DIGITS: Final = 16
MIN_FACTOR: Final = 2


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
    parser.set_defaults(
        suite=Path("bench"),
        overrides=[],
        case=[],
        resume=False,
        mix_environments=False,
        case_timeout=None,
        show=lambda _line: None,
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.launch.process import STATUS, is_first, launched

    options.text = _suite(options)
    given = list(options.given)
    if options.folder is None:
        options.folder = Path("runs") / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        given += ["-o", str(options.folder)]
    if STATUS in os.environ:
        return in_job(options)  # a rank that this command has started
    code = in_job(options) if launched(os.environ) else from_shell(options, given)
    if code in {OK, FAILED} and is_first(os.environ):
        print("\n".join(_table(options.folder)))
    return code


def _suite(options: argparse.Namespace) -> str:
    """Return the text of a suite of one case per scheme and size."""
    keys = {
        "kind": "collective",
        "collective": options.collective,
        "aggregation": options.aggregation.split(","),
        "message_bytes": _sizes(options),
        "ranks": options.ranks or "all",
        "repetitions": options.repetitions,
        "dtype": options.dtype,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    return "\n".join(['[suite]\nname = "bench"\n[[case]]', *lines, ""])


def _sizes(options: argparse.Namespace) -> list[int]:
    """Return the sizes in bytes. Raises UsageError."""
    from hpcdl.cases.spec.keys import size
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


def _table(folder: Path) -> list[str]:
    """Return lines as those of OSU's benchmarks and nccl-tests, for eyes and for awk."""
    from hpcdl.analysis.run.launches import launches
    from hpcdl.analysis.run.pooling import pool
    from hpcdl.analysis.run.scaling import records
    from hpcdl.report.formats.cells import plural
    from hpcdl.trace.schema import read

    run = read(folder)
    found = records(launches(pool([run])))
    first, library = found[0], run.environment["mpi"]
    place = f"{plural(first['ranks'], 'rank')} on {plural(first['nodes'], 'host')}"
    ordered = sorted(found, key=lambda record: (record["message_bytes"], record["aggregation"]))
    return [
        f"# {first['collective']}: {place}, {first['dtype']}, {library['library']} {library['version']}",
        f"# times in us of the slowest rank; algbw and busbw in GB/s, as nccl-tests defines them; {folder}",
        f"#{'bytes':>11}  {'scheme':<20}{'p50':>11}{'p99':>11}{'algbw':>10}{'busbw':>10}  correct",
        *map(_line, ordered),
    ]


def _line(record: dict[str, Any]) -> str:
    begin = f"{record['message_bytes']:>12}  {record['aggregation']:<20}"
    if record["time_p50_seconds"] is None:
        return f"{begin}{'-':>11}{'-':>11}{'-':>10}{'-':>10}  failed"
    times = "".join(f"{1e6 * record[f'time_{name}_seconds']:>11.2f}" for name in ("p50", "p99"))
    rates = "".join(f"{record[f'{name}_bytes_per_second'] / 1e9:>10.3f}" for name in ("algbw", "busbw"))
    return f"{begin}{times}{rates}  {'yes' if record['correct'] else 'NO'}"


COMMAND: Final = Command(
    15,
    "time a collective over message sizes",
    "Time a collective by several schemes over message sizes, and print a line for each. The results are checked. "
    "The run folder has the trace and the report. Outside a launcher hpcdl starts mpirun.",
    arguments,
    execute,
    "hpcdl bench allreduce -b 8 -e 128M -f 2 -a ring,native",
)
