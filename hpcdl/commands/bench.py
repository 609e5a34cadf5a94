"""``hpcdl bench``: time a collective over message sizes, from one command line."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

from hpcdl.commands.parts.bench_table import BenchTable, declare, suite_text
from hpcdl.commands.parts.job import from_shell, in_job
from hpcdl.commands.parts.options import Arguments, Command, rendered
from hpcdl.exit_codes import FAILED, OK, UsageError


def arguments(parser: Arguments) -> None:
    declare(parser)
    late = "seconds by which ranks come late: of each rank, such as 0,0.2,0,0, or RANK:SECONDS of one"
    parser.option("--delays SECONDS", late)
    parser.option("--json", "one JSON document in place of the table")
    parser.set_defaults(suite=Path("bench"), overrides=[], case=[], full=False, launches=1)
    parser.set_defaults(mix_environments=False, case_timeout=None)


def execute(options: argparse.Namespace) -> int:
    from hpcdl.launch.process import batch_advice, is_first, launched

    options.text = suite_text(options, "bench")
    if options.delays:
        options.text += f"straggler = {{{_straggler(options.delays)}}}\n"
    options.show = partial(print, "#", flush=True, file=sys.stderr if options.json else sys.stdout)
    if not launched(os.environ):
        cores = len(os.sched_getaffinity(0))
        if (options.ranks or 0) > cores and not batch_advice(os.environ):
            line = f"{options.ranks} ranks share {cores} cores and wait for them"
            print(f"hpcdl: warning: {line}; -n {cores} avoids it", file=sys.stderr)
        return from_shell(options, options.given)
    table = BenchTable(options.aggregation.split(","), shown=not options.json)
    options.finished = table.add
    code = in_job(options)
    table.end()
    folder = table.folder or options.folder
    if options.json and code in {OK, FAILED} and is_first(os.environ) and folder:
        from hpcdl.report.render import renderings

        print(*rendered([folder], partial(renderings, formats=["json"]), launches=False).texts, end="")
    return code


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


COMMAND: Final = Command(
    15,
    "time a collective over message sizes",
    "Time a collective by several schemes over message sizes; results are checked. Two to four schemes share a "
    "line, with the first time / each other time; one scheme has the columns of osu_allreduce -f and nccl-tests. "
    "The last lines name the fastest scheme by size. The run folder has trace and report. Outside mpirun it "
    "starts the ranks.",
    "hpcdl bench allreduce -b 8 -e 128M -f 2 -a ring,native",
)
