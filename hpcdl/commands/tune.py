"""``hpcdl tune``: best schemes, algorithms of the library and bucket sizes, confirmed by a second run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product, zip_longest
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcdl.commands.parts.bench_table import FLAGS, LETTERS, declare, microseconds, suite_text
from hpcdl.commands.parts.job import folder_of, from_shell
from hpcdl.commands.parts.options import Arguments, Command, whole_number
from hpcdl.exit_codes import FAILED, INCONCLUSIVE, INTERRUPTED, OK, UsageError

if TYPE_CHECKING:
    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.run.record import Record
    from hpcdl.analysis.statistics.estimates import Interval
    from hpcdl.suite import Case
    from hpcdl.trace.files import JsonObject

SEARCHES: Final = 2
"""Launches of the first run, which names the candidates of the second."""
MIN_GAIN: Final = 0.03
"""Gain up to which a default is as good."""
ROUNDS: Final = 3
"""Rounds of the second run that an interval needs."""
BUCKETS: Final = ", ".join(
    f'{{name="synchronous", bucket_bytes={size}}}' for size in (0, *(4**n for n in range(8, 14)))
)
"""Strategies that are tried in replays, besides the default."""
DEFAULTS: Final = {"collective": ("native", ""), "replay": ("synchronous", "")}

OF_COLLECTIVE: Final = dict(
    zip(
        ("least", "most", "factor", "aggregation", "ranks", "repetitions", "warmup", "dtype"),
        "befanrwd",
        strict=True,
    )
)
"""Letters of the options that a suite states itself."""

Plan = dict[str, tuple[Mapping[str, str], list[str]]]
"""By algorithm of the library, ``allreduce ring``, "" if it chooses: variables that force it, names of cases."""
Tried = dict[tuple[str, str], dict[int, "Launch"]]
"""Launches by round, by scheme of a collective or strategy of a replay, and by algorithm."""
Configuration = tuple[Any, ...]
"""Problem and number of ranks; of a replay, with its scheme."""


def arguments(parser: Arguments) -> None:
    declare(parser, "SUITE|COLLECTIVE")
    several = "launches of the second run (default: 5)"
    parser.option("--launches N", several, type=whole_number, default=5)
    parser.option("--json", "one JSON document")
    parser.set_defaults(aggregation="all", factor=4, repetitions=10)


def execute(options: argparse.Namespace) -> int:
    from hpcdl.launch.library_algorithms import algorithms
    from hpcdl.report.formats.writers import json_text

    cases = _prepare(options)
    plan: Plan = {"": ({}, [case.name for case in cases])}
    for case in (case for case in cases if str(case.setting("aggregation")) == "native"):
        collective = case.setting("collective")
        for name, forced in algorithms(collective).items() if collective else ():
            plan.setdefault(f"{collective} {name}", (forced, []))[1].append(case.name)
    left_out: dict[str, str] = {}
    first, failed = _run(options, "first", SEARCHES, plan, left_out)
    again: Plan = {}
    for tried in first.values():
        for scheme, algorithm in _candidates(tried):
            name = str(_record(tried[scheme, algorithm]).case)
            again.setdefault(algorithm, (plan[algorithm][0], []))[1].append(name)
    second, failed_again = _run(options, "second", options.launches, again, left_out)
    rows = _rows(first, second)
    lines = [*_lines(rows), *_write(options.folder, rows), *(f"# {case}: {why}" for case, why in left_out.items())]
    print(json_text({"cases": rows, "left_out": left_out}) if options.json else "\n".join([*lines, ""]), end="")
    open_rows = [row for row in rows if any(gain["confirmed"] is None for gain in row["gains"].values())]
    return FAILED if failed or failed_again else OK if 2 * len(open_rows) < len(rows) else INCONCLUSIVE


def _prepare(options: argparse.Namespace) -> list[Case]:
    """Set suite, overrides and folder in ``options``; return the cases to measure. Raises UsageError."""
    from hpcdl import suite
    from hpcdl.aggregation.parts.traits import COLLECTIVES, schemes
    from hpcdl.cases.parts.autotune import candidates
    from hpcdl.launch.process import launched

    if launched(os.environ):
        raise UsageError("hpcdl tune starts mpirun several times: call it outside of mpirun and srun")
    name, options.overrides = options.collective, []
    if name in COLLECTIVES:
        if options.aggregation == "all":
            options.aggregation = ",".join(candidates() if name == "allreduce" else schemes(name))
        options.aggregation = ",".join(dict.fromkeys(["native", *options.aggregation.split(",")]))
        chosen = suite.parse(suite_text(options, "tune"), "tune")
    else:
        parser = Arguments()
        arguments(parser)
        if ignored := [
            flag for key, flag in OF_COLLECTIVE.items() if getattr(options, key) != parser.get_default(key)
        ]:
            raise UsageError(f"-{ignored[0]}: is for a collective; the suite {name} has its own")
        options.suite = Path(name)
        chosen = suite.load(options.suite)
        if any(case.kind == "replay" for case in chosen.cases):
            options.overrides = [f'case.training=["synchronous", {BUCKETS}]']
            chosen = suite.load(options.suite, options.overrides)
    options.folder = folder_of(options, chosen)
    if options.folder.exists() and not options.resume:
        raise UsageError(f"-o {options.folder}: exists; choose another folder or add --resume")
    cases = [case for case in chosen.cases if case.kind in DEFAULTS and not case.setting("network")]
    if not cases or options.launches < ROUNDS:
        raise UsageError(f"{name}: tuning needs collectives or replays on ranks, and --launches from {ROUNDS} on")
    options.folder.mkdir(parents=True, exist_ok=True)
    if name in COLLECTIVES:
        options.suite = options.folder / "tune.toml"
        options.suite.write_text(chosen.text, encoding="utf-8")
    return cases


def _run(
    options: argparse.Namespace, run: str, rounds: int, plan: Plan, left_out: dict[str, str]
) -> tuple[dict[Configuration, Tried], bool]:
    """Launch the plan in rounds; return launches by configuration, and True if a case without algorithm failed.

    ``left_out`` gets a reason by case that cannot run here, and by launch that failed with an algorithm. Raises
    KeyboardInterrupt if a launch was interrupted.
    """
    from hpcdl.analysis.run.disturbance import marked
    from hpcdl.analysis.run.launches import launches
    from hpcdl.launch.mpirun import LAUNCH
    from hpcdl.trace.schema import read

    failed, launched = False, dict[Configuration, Tried]()
    for number, (name, (variables, cases)) in product(range(1, rounds + 1), plan.items()):
        print(f"# {run} run, launch {number}, {name or 'default'}", file=sys.stderr, flush=True)
        folder = options.folder / run / (name or "default") / f"launch-{number}"
        words = [f"--set={text}" for text in options.overrides] + [f"--case={case}" for case in cases]
        more = {"folder": folder, "case": cases, "resume": True, "ranks": None, "text": None, "full": False}
        given = ["run", str(options.suite), "-o", str(folder), "--resume", *words]
        with _surroundings({**variables, LAUNCH: str(number)}, [1, 2] if name else [1]):
            code = from_shell(argparse.Namespace(**{**vars(options), **more}), given)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code not in {OK, FAILED} and not name:
            sys.exit(code)
        finished = read(folder) if (folder / "run.h5").exists() else None
        refused = finished.environment.get("cases_not_run", []) if finished else []
        left_out.update({str(case["case"]): f"not run: {case['error']}" for case in refused})
        wrong = not finished or any(fields.get("correct") is False for fields in finished.described)
        if code != OK and (wrong or not refused or (finished and finished.environment.get("failed_cases"))):
            failed |= not name  # an algorithm need not serve all cases
            if name:
                left_out[f"{name}, launch {number} of the {run} run"] = f"failed; see {folder}/log.txt"
        if finished is None:
            continue
        for launch in launches(finished):
            (record,) = marked(finished, [launch.record])
            configuration = (record.problem(), record.ranks, record.aggregation if record.kind == "replay" else "")
            if len(launch.seconds) and record.correct is not False and not record.independent:
                scheme = record.training if record.kind == "replay" else record.aggregation
                launched.setdefault(configuration, {}).setdefault((str(scheme), name), {})[number] = launch
    return launched, failed


@contextmanager
def _surroundings(variables: Mapping[str, str], streams: Sequence[int]) -> Iterator[None]:
    """Set variables of the environment, and lead the descriptors ``streams`` to the null device."""
    sys.stdout.flush()
    before, copies = dict(os.environ), {stream: os.dup(stream) for stream in streams}
    try:
        os.environ.update(variables)
        with Path(os.devnull).open("wb") as null:
            for stream in streams:
                os.dup2(null.fileno(), stream)
        yield
    finally:
        sys.stdout.flush()
        for stream, copy in copies.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.environ.clear()
        os.environ.update(before)


def _default(tried: Tried) -> tuple[str, str]:
    return DEFAULTS[_record(next(iter(tried.values()))).kind]


def _record(launches: dict[int, Launch]) -> Record:
    return next(iter(launches.values())).record


def _seconds(launches: dict[int, Launch]) -> float:
    return median(launch.typical(launch.seconds) for launch in launches.values())


def _candidates(tried: Tried) -> list[tuple[str, str]]:
    """Return the default, and the fastest scheme and algorithm that are faster; empty if none is."""
    limit = _seconds(tried[_default(tried)]) if _default(tried) in tried else 0
    slowest_first = sorted(tried, key=lambda name: -_seconds(tried[name]))
    best = {bool(name[1]): name for name in slowest_first if _seconds(tried[name]) < limit}
    return [_default(tried), *best.values()] if best else []


def _rows(first: Mapping[Configuration, Tried], second: Mapping[Configuration, Tried]) -> list[JsonObject]:
    """Return the rows of the table, as for ``--json``."""
    defaults = {
        configuration: second.get(configuration, {}).get(_default(tried)) or tried[_default(tried)]
        for configuration, tried in first.items()
        if _default(tried) in tried
    }
    ratios = {
        (configuration, candidate): values
        for configuration, base in defaults.items()
        for candidate, launches in second.get(configuration, {}).items()
        if launches is not base and len(values := _ratios(base, launches)) >= ROUNDS
    }
    gains = dict(zip(ratios, _gains([*ratios.values()]), strict=True))
    return [
        _row(base, {candidate: gain for (of, candidate), gain in gains.items() if of == configuration})
        for configuration, base in defaults.items()
    ]


def _ratios(base: dict[int, Launch], launches: dict[int, Launch]) -> list[float]:
    """Return the default's time / the candidate's in each round; disturbed ones only if others are too few."""
    rounds = [number for number in base if number in launches]
    fair = [number for number in rounds if not (base[number].disturbed or launches[number].disturbed)]
    rounds = fair if len(fair) >= ROUNDS else rounds
    return [_seconds({0: base[number]}) / _seconds({0: launches[number]}) for number in rounds]


def _gains(ratios: Sequence[Sequence[float]]) -> list[Interval]:
    """Return the geometric means; their 95 % intervals hold together (Bonferroni), with moderated variances."""
    import numpy as np

    from hpcdl.analysis.statistics.differences import Difference, moderated_variances
    from hpcdl.analysis.statistics.estimates import Interval

    if not ratios:
        return []
    logarithms = np.log([*zip_longest(*ratios, fillvalue=np.nan)]).T
    counts, means = np.isfinite(logarithms).sum(axis=1), np.nanmean(logarithms, axis=1)
    variance, freedom = moderated_variances(logarithms - means[:, None], counts - 1.0)
    low, high = Difference(means, np.sqrt(variance / counts), freedom).bounds(1 - 0.05 / len(ratios))
    return [Interval(*row) for row in np.exp(np.stack([means, low, high], axis=1)).tolist()]


def _row(base: dict[int, Launch], gains: Mapping[tuple[str, str], Interval]) -> JsonObject:
    """Return a row; a gain counts if all of its interval is above the smallest one."""
    named = {}
    for (scheme, algorithm), times in gains.items():
        confirmed = True if times.low > 1 + MIN_GAIN else False if times.high < 1 + MIN_GAIN else None
        gain = {"name": algorithm.partition(" ")[2] or scheme, "confirmed": confirmed, **times._asdict()}
        named["library_algorithm" if algorithm else "scheme"] = gain
    record = _record(base)
    record.disturbed = next((launch.disturbed for launch in base.values() if launch.disturbed), None)
    columns = ("kind", "collective", "model", "aggregation", "dtype", "message_bytes", "ranks", "nodes", "marks")
    return {
        **{name: getattr(record, name) for name in columns},
        "default_seconds": _seconds(base),
        "times_the_best": max([1.0, *(gain["value"] for gain in named.values() if gain["confirmed"])]),
        "gains": named,
    }


def _answer(rows: list[JsonObject]) -> str:
    """Return in how many rows the second run confirms a gain, and the largest one."""
    from hpcdl.report.run.names import title_of

    gains = [gain for row in rows for gain in row["gains"].values() if gain["confirmed"]]
    if not gains:
        return f"The second run confirms no gain over the default in any of {len(rows)} rows."
    most = max(gains, key=lambda gain: float(gain["value"]))
    fast = f"{most['value']:.3g} ({most['low']:.3g} to {most['high']:.3g}) times as fast"
    count = sum(any(gain["confirmed"] for gain in row["gains"].values()) for row in rows)
    where = f"in {count} of {len(rows)} rows"
    return f"The second run confirms a gain over the default {where}: {title_of(most['name'])} is up to {fast}."


def _lines(rows: list[JsonObject]) -> list[str]:
    """Return the table in 80 columns; a second gain of a row stands in a line below it."""
    kinds, standing = {"library_algorithm": "MPI "}, {None: "open: ", False: "no gain: "}
    names = [str(row["message_bytes"] or f"{row['model']} {row['aggregation']}") for row in rows]
    width = max(9, *map(len, names))
    lines = [
        *textwrap.wrap(_answer(rows), 80, initial_indent="# ", subsequent_indent="# "),
        "# default (us): native, or synchronous with its default buckets; x: time of",
        "# the default / of the best, 1 if no gain is confirmed; a gain is confirmed if",
        f"# its 95 % interval, adjusted for the number of comparisons, is above {1 + MIN_GAIN:g}",
        f"# {FLAGS}",
        f"#{'bytes':>{width - 1}}{'ranks':>6}{'default':>10}{'x':>6}  scheme, or algorithm of MPI (95 %)",
    ]
    for name, row in zip(names, rows, strict=True):
        flags = "".join(letter for flag, letter in LETTERS.items() if flag in row["marks"])
        default = microseconds(row["default_seconds"]) + flags
        begin = f"{name:>{width}}{row['ranks']:>6}{default:>10}{row['times_the_best']:>6.2f}"
        for kind, gain in row["gains"].items():
            text = f"{standing.get(gain['confirmed'], '')}{kinds.get(kind, '')}{gain['name']}"
            lines.append(f"{begin}  {text} ({gain['low']:.3g} to {gain['high']:.3g})")
            begin = "#".ljust(len(begin))
        lines += [] if row["gains"] else [f"{begin}  -"]
    return lines


def _write(folder: Path, rows: list[JsonObject]) -> list[str]:
    from hpcdl.launch.library_algorithms import write_rules

    table, rules = "", dict[int, dict[str, list[tuple[int, str]]]]()
    for row in sorted((row for row in rows if row["collective"]), key=lambda row: row["message_bytes"]):
        best = {kind: gain["name"] for kind, gain in row["gains"].items() if gain["confirmed"]}
        sizes = rules.setdefault(row["ranks"], {}).setdefault(row["collective"], [(0, "")])
        sizes.append((row["message_bytes"], best.get("library_algorithm", "")))
        if row["collective"] == "allreduce":
            scheme = best.get("scheme", "native")
            table += f'[[rule]]\nranks = {row["ranks"]}\nfrom_bytes = {sizes[-1][0]}\naggregation = "{scheme}"\n'
    (folder / "auto.toml").write_text(table, encoding="utf-8")
    path = json.dumps(f"{folder.absolute()}/auto.toml", ensure_ascii=False)  # TOML's escapes are those of JSON
    lines = [f'# aggregation = {{name = "auto", table = {path}}}'] if table else []
    for ranks, of_ranks in sorted(rules.items()):
        chosen = {name: sizes for name, sizes in of_ranks.items() if any(algorithm for _, algorithm in sizes)}
        lines += [f"# {ranks} ranks: export {write_rules(folder, ranks, chosen)}"] if chosen else []
    return lines


COMMAND: Final = Command(
    17,
    "find the best schemes, algorithms and bucket sizes",
    "Find the fastest scheme, and the MPI library's fastest algorithm, for each size of a collective or of those "
    "in a suite, and the best bucket size of its replays. A gain over the default counts if a second run confirms "
    "it. DIR gets a table for aggregation auto and rules for the library. Exit code 1: a case failed; 3: half of "
    "the rows are not decided.",
    "hpcdl tune allreduce -n 2 -o tuned",
)
