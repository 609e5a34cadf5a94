"""``hpcdl trace``: timelines and schedules of a run for other tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, Command, case_patterns, output_path, path, whole_number
from hpcdl.exit_codes import OK, UsageError

if TYPE_CHECKING:
    from hpcdl.trace.run import Run

FORMATS: Final = ("perfetto", "goal", "chakra")


def arguments(parser: Arguments) -> None:
    parser.option("run RUN", "a run folder or a run.h5; of a folder of --launches, the first", type=path)
    parser.option("-o FILE", "such as run.pftrace; with chakra a folder", dest="file", type=path, required=True)
    parser.option("--format", "(default: perfetto)", choices=FORMATS, default="perfetto")
    case_patterns(parser, "the case, if the run has several")
    parser.option("--ranks N-M,...", "only these ranks (default: all)", type=_numbers)
    parser.option("--steps N-M,...", "only these steps (default: all)", type=_numbers)


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        ends = whole_number(first), whole_number(last if dash else first)
        if not 0 <= ends[0] <= ends[1] < 1 << 20:  # a range may have a million
            raise argparse.ArgumentTypeError(f"{word!r} is no range such as 0-7")
        numbers += range(ends[0], ends[1] + 1)
    return numbers


def execute(options: argparse.Namespace) -> int:
    from hpcdl.analysis.run.pooling import runs_in
    from hpcdl.models.layers import table_text
    from hpcdl.prediction.layer_tables import of_run
    from hpcdl.trace.export import select, write_chakra, write_goal, write_perfetto
    from hpcdl.trace.recorder import analysed
    from hpcdl.trace.schema import read

    try:
        launches = runs_in(options.run)
        run = read(launches[0])
        with analysed(options.run):
            case = _case(run, options.case)
            selection = select(run, case, options.ranks, options.steps)
            if options.format == "chakra":
                layers = ""
                with suppress(ValueError):  # no training, or of a network that no file may name
                    layers = table_text(of_run(run, [case]))
                messages = write_chakra(options.file, selection, layers)
            else:
                with output_path("-o", options.file) as file:
                    messages = {"perfetto": write_perfetto, "goal": write_goal}[options.format](file, selection)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"-o {options.file}: cannot be written: {error.strerror}") from None
    of = f", launch 1 of {len(launches)}" if len(launches) > 1 else ""
    print(f"{selection.name}{of}: {len(selection.events)} events, {messages} messages: {options.file}")
    if selection.dropped:
        print(f"warning: {selection.dropped} events of this case were not recorded; messages may be missing")
    return OK


def _case(run: Run, globs: Sequence[str]) -> int:
    """Return the index of the only case that ``globs`` select. Raises ValueError if it is none or several."""
    from hpcdl.suite import matching

    names = [str(fields.get("case", "")) for fields in run.described]
    chosen = matching(names, globs)
    if len(chosen) == 1:
        return chosen[0]
    raise ValueError(f"--case: choose one of {len(chosen)} cases, such as {names[chosen[0]]!r}")


COMMAND: Final = Command(
    35,
    "timelines and schedules for other tools",
    "Write the events of a case for other tools: a timeline with an arrow for each message, to be opened in "
    "ui.perfetto.dev, a GOAL schedule for LogGOPSim and ATLAHS, or a Chakra execution trace per rank.",
    "hpcdl trace runs/quickstart --case NAME -o run.pftrace",
)
