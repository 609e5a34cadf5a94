"""Collectives over message sizes: options of commands, their suite, and the table of ``hpcdl bench``."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, path, whole_number
from hpcdl.exit_codes import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.run.record import Record
    from hpcdl.trace.run import Run

MIN_FACTOR: Final = 2


def declare(parser: Arguments, metavar: str = "COLLECTIVE") -> None:
    """Declare the collective, sizes, schemes, ranks and run folder."""
    names = "allreduce (default), reduce_scatter, allgather, all_to_all, alltoallv, broadcast or reduce"
    parser.option(f"collective {metavar}", names, nargs="?", default="allreduce")
    parser.option("-b SIZE", "smallest size (default: 8)", dest="least", default="8")
    parser.option("-e SIZE", "largest size (default: 4M)", dest="most", default="4M")
    effect = "factor between sizes (default: %(default)s)"
    parser.option("-f N", effect, dest="factor", type=whole_number, default=2)
    effect = "schemes, of `hpcdl list aggregation` (default: %(default)s)"
    parser.option("-a --aggregation NAMES", effect, default="native,ring")
    parser.option("-n --ranks RANKS", "ranks (default: one per core)", type=whole_number)
    parser.option("-r --repetitions N", "timed repetitions (default: %(default)s)", type=whole_number, default=20)
    effect = "repetitions before the timed ones (default: %(default)s)"
    parser.option("-w --warmup N", effect, type=whole_number, default=5)
    parser.option("-d --dtype TYPE", "float32 (default) or float64", default="float32")
    parser.option("-o DIR", "keep the run here (default: runs/bench-TIME)", dest="folder", type=path)
    parser.option("--resume", "measure the rows that the run in DIR lacks")


def suite_text(options: argparse.Namespace, name: str) -> str:
    """Return the text of a suite of one case per size and scheme, in the order of the rows."""
    keys = {
        "kind": "collective",
        "collective": options.collective,
        "message_bytes": _sizes(options),
        "aggregation": options.aggregation.split(","),
        "ranks": options.ranks or "all",
        "repetitions": options.repetitions,
        "warmup": options.warmup,
        "dtype": options.dtype,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join([f'[suite]\nname = "{name}"\n[[case]]', *lines, ""])


def _sizes(options: argparse.Namespace) -> list[int]:
    from hpcdl.cases.keys.key import size

    ends = []
    for name, text in (("-b", options.least), ("-e", options.most)):
        end = int(text) if text.isdecimal() and len(text) < 16 else size(text)
        if end is None:
            raise UsageError(f"{name} {text}: must be a size in bytes, such as 8, 64K or 128M")
        ends.append(end)
    least, most = ends
    if most < least:
        raise UsageError(f"-e {options.most} is smaller than -b {options.least}: sizes grow from -b to -e")
    if options.factor < MIN_FACTOR or least < 1:
        words = f"-b {options.least} -e {options.most} -f {options.factor}"
        raise UsageError(f"{words}: sizes grow from at least 1 by a factor of at least {MIN_FACTOR}")
    sizes = [least]
    while sizes[-1] * options.factor <= most:
        sizes.append(sizes[-1] * options.factor)
    return sizes


FLAGS: Final = "flags: D disturbed by other load, T throttled, S ranks share cores, W WRONG"
LETTERS: Final = {"disturbed": "D", "throttled": "T", "oversubscribed": "S", "wrong": "W"}
MEASURED: Final = ("bytes", "avg", "min", "max", "p50", "p99", "algbw", "busbw")
MAX_RANGES: Final = 4
"""Ranges of sizes that the last line names; of more it counts the sizes."""
DELAYED: Final = ("bytes", "p50", "p99", "from first", "from last", "late rank")


class BenchTable:
    """Table of the cases of a run, in the order of its sizes.

    Two to four schemes share a line, which is printed once all have ended. Otherwise each case has a line.
    """

    def __init__(self, schemes: Sequence[str], *, shown: bool = True) -> None:
        self._schemes = list(dict.fromkeys(schemes))
        self._shown = shown
        self._line: dict[str, Record] = {}
        """Records of the line that is not printed yet, by scheme."""
        self._columns: list[str] = []
        self._records: list[Record] = []
        self.folder: Path | None = None
        """Run folder; None before a case has ended, and on ranks other than 0."""

    def add(self, part: Path) -> None:
        """Add the case in the file ``part``, and print the line that it ends."""
        from hpcdl.analysis.run.disturbance import marked
        from hpcdl.analysis.run.launches import launches
        from hpcdl.analysis.run.pooling import pool
        from hpcdl.analysis.run.scaling import records
        from hpcdl.trace.schema import read

        run = read(part)
        every = launches(pool([run]))
        (record,) = marked(run, records(every))
        self._records.append(record)
        is_wide = 1 < len(self._schemes) <= 4 and not record.straggler
        if self.folder is None:
            self.folder = run.path.parent.parent
            self._begin(run, record, is_wide=is_wide)
        if not is_wide:
            self._print([*row(record, every[0]), f" {record.aggregation}"][: len(self._columns)])
            return
        if any(other.message_bytes != record.message_bytes for other in self._line.values()):
            self.print_rest()
        self._line[str(record.aggregation)] = record
        if len(self._line) == len(self._schemes):
            self.print_rest()

    def print_rest(self) -> None:
        """Print the line that is not printed yet, also if it lacks schemes."""
        if self._line:
            self._print(wide_row([self._line.get(scheme) for scheme in self._schemes]))
        self._line.clear()

    def end(self) -> None:
        """Print the line that is not printed yet, the answer, and how many times are disturbed."""
        from hpcdl.report.formats.cells import unbroken

        self.print_rest()
        timed = [record for record in self._records if record.time_p50_seconds and not record.straggler]
        lines = [fastest(self._schemes, timed)] if timed else []
        if causes := [record.disturbed.partition(" (")[0] for record in timed if record.disturbed]:
            count = f"{len(causes)} of {len(timed)} times are disturbed"
            lines.append(f"{count}: {causes[-1]}. Repeat on an idle machine.")
        for line in lines if self._shown else []:
            for part in textwrap.wrap(unbroken(line), 78):
                print(f"# {part}".replace("\N{NO-BREAK SPACE}", " "), flush=True)

    def _begin(self, run: Run, record: Record, *, is_wide: bool) -> None:
        """Print comment lines: the setting, the meaning of the columns, and their names."""
        from hpcdl.report.formats.cells import plural

        library, (first, *others) = run.environment["mpi"], self._schemes
        ranks = f"{plural(record.ranks, 'rank')} on {plural(record.nodes, 'host')}"
        notes = [
            f"{record.collective}: {ranks}, {record.dtype}, {library['library']} {library['version']}",
            f"run folder {self.folder}",
            FLAGS,
        ]
        self._columns = [*(DELAYED if record.straggler else MEASURED), *(["scheme"] if others else [])]
        if is_wide:
            self._columns = ["bytes", *self._schemes, *(f"{first} / {other}" for other in others)]
            notes += [
                "times (us): median of the slowest rank; one scheme alone has min, max, busbw",
                f"{first} / x: above 1 if x is faster; one launch does not show how launches vary",
            ]
        elif not record.straggler:
            notes += [
                "avg, min, max (us) over ranks of a rank's mean, as osu_allreduce -f; p50, p99",
                "over repetitions of the slowest rank; algbw, busbw (GB/s) as nccl-tests",
            ]
        if self._shown:
            print("\n".join(f"# {note}" for note in notes))
        broken = [textwrap.wrap(name.replace("_", "_ "), 8) for name in self._columns]
        for parts in reversed([*zip_longest(*(words[::-1] for words in broken), fillvalue="")]):
            self._print(["#", *(part.replace("_ ", "_") for part in parts)])

    def _print(self, cells: Sequence[str]) -> None:
        """Print right-aligned cells; a first cell ``#`` stands before the others."""
        begin, cells = ("#", cells[1:]) if cells[0] == "#" else ("", cells)
        widths = [11 if " / " in name else 9 for name in self._columns]
        text = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        if self._shown:
            print(begin + text[len(begin) :], flush=True)


def fastest(schemes: Sequence[str], records: Sequence[Record]) -> str:
    """Return the scheme with the lowest median by size; of one scheme its shortest time and largest bandwidth."""
    from hpcdl.report.formats.cells import listed, rate, seconds, volume
    from hpcdl.report.sections.collectives import NEARLY

    if len(schemes) == 1:
        least = min(records, key=lambda record: record.time_p50_seconds or 0)
        most = max(records, key=lambda record: record.busbw_bytes_per_second or 0)
        shortest = f"{seconds(least.time_p50_seconds)} for {volume(least.message_bytes)}"
        bandwidth = f"{rate(most.busbw_bytes_per_second)} at {volume(most.message_bytes)}"
        return f"{schemes[0]} takes {shortest}, and reaches a bus bandwidth of {bandwidth}."
    winners = dict[int, str]()
    for size in sorted({record.message_bytes or 0 for record in records}):
        alike = [record for record in records if record.message_bytes == size]
        (time, name), *others = sorted((record.time_p50_seconds or 0, str(record.aggregation)) for record in alike)
        is_ahead = len(alike) == len(schemes) and others[0][0] > NEARLY * time
        winners[size] = name if is_ahead else "no scheme"
    ranges = []
    for name, group in groupby(winners, key=winners.__getitem__):
        ends = dict.fromkeys(map(volume, itemgetter(0, -1)([*group])))
        ranges.append(f"{name} {'at' if len(ends) == 1 else 'from'} {' to '.join(ends)}")
    if len(ranges) > MAX_RANGES:
        counts = Counter(winners.values()).most_common()
        ranges = [f"{name} at {count} of {len(winners)} sizes" for name, count in counts]
    return f"Fastest in this launch, by 10 % or more: {listed(ranges)}."


def row(record: Record, launch: Launch) -> list[str]:
    """Return the cells of a case: times over ranks and over repetitions, and bandwidths."""
    begin, p99 = str(record.message_bytes), microseconds(record.time_p99_seconds)
    if record.straggler:
        arrivals = map(microseconds, (record.from_first_arrival_seconds, record.from_last_arrival_seconds))
        late = "none" if record.late_rank is None else str(record.late_rank)
        return [begin, _flagged(record), p99, *arrivals, late]
    rates = (record.algbw_bytes_per_second, record.busbw_bytes_per_second)
    bandwidths = [f"{(rate or 0) / 1e9:.3f}" for rate in rates]
    return [begin, *map(microseconds, over_ranks(launch)), _flagged(record), p99, *bandwidths]


def over_ranks(launch: Launch) -> tuple[float | None, ...]:
    """Return mean, least and largest over ranks of a rank's mean time (s), as OSU's benchmarks print them."""
    import numpy as np

    steps = launch.case.steps[launch.case.steps["step"] >= launch.record.warmup_steps]
    if not len(steps):  # the case failed
        return None, None, None
    means = np.bincount(steps["rank"], (steps["end"] - steps["begin"]) / 1e9) / np.bincount(steps["rank"])
    return float(means.mean()), float(means.min()), float(means.max())


def wide_row(records: Sequence[Record | None]) -> list[str]:
    """Return the cells of a size: times with flags, and the first time / each other one."""
    size = next(record.message_bytes for record in records if record)
    times = [_flagged(record) if record else "-" for record in records]
    return [str(size), *times, *(_quotient(records[0], other) for other in records[1:])]


def _quotient(first: Record | None, other: Record | None) -> str:
    """Return the quotient of two times."""
    if not (first and other and first.time_p50_seconds and other.time_p50_seconds):
        return "-"
    ratio = first.time_p50_seconds / other.time_p50_seconds
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def _flagged(record: Record) -> str:
    """Return the median time (us), and a letter for each flag."""
    flags = [*record.marks, *(["wrong"] if record.correct is False else [])]
    return microseconds(record.time_p50_seconds) + "".join(LETTERS[flag] for flag in LETTERS if flag in flags)


def microseconds(seconds: float | None) -> str:
    """Return a time in at most six characters below a second."""
    time = 1e6 * (seconds or 0)
    return "-" if seconds is None else f"{time:.{2 if time < 1e3 else 1 if time < 1e4 else 0}f}"
