"""Page of an archive's history: the verdict, new events, all events, changes of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.analysis.over_time.change_points import AFTER, BEFORE, MIN_EFFECT
from hpcdl.analysis.over_time.verdict import FLOOR, TOGETHER
from hpcdl.launch.environment import differences
from hpcdl.report.formats.cells import NONE, digits, interval, plural, rate
from hpcdl.report.formats.document import Document, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.over_time.change_points import Calibration
    from hpcdl.analysis.over_time.history import History, Job
    from hpcdl.analysis.over_time.suspects import Spread, Suspect
    from hpcdl.analysis.over_time.verdict import BelowFloor, Event, SuiteVerdict


CASES: Final = 10
"""Cases of a new event in the page, at most; --json has all."""
VISIBLE_SPREAD: Final = 0.01
"""Least standard deviation between hosts, as a logarithm, that is stated."""
MEASURES: Final = {"step_seconds": "step", "time_p50_seconds": "p50", "seconds_to_target": "to target"}


def page(verdict: SuiteVerdict, calibration: Calibration | None) -> Document:
    """Return the page of one suite."""
    history, findings = verdict.history, verdict.findings
    first, last = history.jobs[0], history.jobs[-1]
    series = f"{plural(findings.judged + findings.short, 'measure')} in the newest"
    runs = f"{plural(len(history.jobs), 'run')}, {day(first)} to {day(last)}, {series}."
    short = f"{findings.short} of them have fewer than {BEFORE} runs and are not judged."
    slow = [_suspect(history, suspect) for suspect in findings.suspects]
    sections = [
        Section("Verdict", [runs, *([short] if findings.short else [])], _verdict(verdict)),
        *(_cases(history, event) for event in (*verdict.open_events, *verdict.news)),
        Section("Changes", tables=[_events(verdict)] if findings.events else []),
        Section("Slow hosts and links", points=slow or _spread(findings.spread)),
        Section("Changes of the environment", points=_environment(history)),
        Section("Calibration on this archive", _calibration(calibration)),
    ]
    return Document(f"hpcdl: history of {history.suite}", [section for section in sections if section])


def day(job: Job) -> str:
    """Return the date and time of a job, UTC."""
    return job.date[:16].replace("T", " ")


def signed(ratio: float) -> str:
    """Return a ratio of times as a signed share: +5.1 %."""
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 10 else f"x {digits(ratio)}"


def label(history: History, series: int) -> str:
    """Return case and measure of a series."""
    key = history.keys[series]
    return f"{key.case} ({MEASURES.get(key.measure, key.measure)})"


def sentence(history: History, event: Event) -> str:
    """Return one event in words: verdict, first run, size, cases, and the environment or the likely hosts."""
    job, worst = history.jobs[event.first], event.changes[0]
    text = f"{event.verdict.upper()} since {day(job)} ({job.path}): {plural(len(event.changes), 'measure')}, "
    text += f"median {signed(event.ratio)}, most {label(history, worst.series)} {_size(worst.ratio)}."
    if event.verdict == "two states":
        text += " Slower again, at a level that they had before; later changes between the two are not reported."
    if event.environment:
        facts = "; ".join(_differences(history, event.first))
        text += f" {'Slower' if event.ratio > 1 else 'Faster'} since the new environment: {facts}."
    if event.suspects:
        return " ".join([text, *(f"Likely: {_suspect(history, suspect)}" for suspect in event.suspects)])
    return f"{text} {_no_culprit(history, event)}" if event.ratio > 1 and not event.environment else text


def below_floor(history: History, floor: BelowFloor) -> str:
    """Return in words that a collective is below the floor."""
    case = history.case(floor.series)
    return (
        f"{case.collective}, {plural(case.ranks, 'rank')}: the best algorithm, {case.case}, has a bus bandwidth "
        f"of {rate(floor.rate)} since {day(history.jobs[floor.first])}, below {100 * FLOOR:g} % of the link's "
        "nominal "
        f"{rate(floor.nominal)}."
    )


def _size(ratio: Sequence[float]) -> str:
    value, low, high = ratio
    return f"{signed(value)} ({interval(100 * (low - 1), 100 * (high - 1), lambda one: f'{one:+.1f}')} %)"


def _no_culprit(history: History, event: Event) -> str:
    around = history.jobs[max(0, event.first - BEFORE) : event.found + 1]
    sets = {tuple(sorted(job.hosts)) for job in around}
    if all(len(hosts) < 2 for hosts in sets):
        return "One host: no other to compare it with."
    measured = any(case.host_slowness for job in around for run in job.runs for case in run.cases)
    if len(sets) == 1 and not measured:
        return (
            'All runs had the same hosts; a case of kind "pairwise", pattern "all_pairs", would tell them apart.'
        )
    return "No host or link stands out."


def _verdict(verdict: SuiteVerdict) -> list[str]:
    history = verdict.history
    newest = len(history.jobs) - 1
    points = [f"{sentence(history, event)} {_since(event, newest)}" for event in verdict.open_events]
    points += [f"REGRESSED: {_suspect(history, suspect)}" for suspect in verdict.open_suspects]
    points += [f"REGRESSED: {below_floor(history, floor)}" for floor in verdict.open_below_floor]
    points += [f"MISSING in the newest run: {case}: {reason}" for case, reason in verdict.missing]
    if verdict.age is not None:
        hours = verdict.age.total_seconds() / 3600
        points.append(f"STALE: the newest run began at {day(history.jobs[-1])}, {hours:.0f} hours ago.")
    points += [sentence(history, event) for event in verdict.news]
    points += [_accepted(verdict, event) for event in verdict.accepted_events]
    disturbed = history.jobs[-1].disturbed
    if disturbed:
        case, cause = next(iter(disturbed.items()))
        points.append(
            f"DISTURBED in the newest run: {plural(len(disturbed), 'case')}, not judged: {case}: {cause}."
        )
    if verdict.verdict == "too few runs":
        points.append(f"TOO FEW RUNS: no measure of the newest has {BEFORE} runs.")
    elif verdict.verdict == "fine" and verdict.age is None:
        points.append(f"FINE: no change of {100 * MIN_EFFECT:g} % or more for the worse is open.")
    return points


def _since(event: Event, newest: int) -> str:
    back = len(event.changes) - len(event.open)
    repaired = f", {back} of them repaired" if back else ""
    return f"Found {plural(newest - event.found, 'run')} before the newest{repaired}."


def _accepted(verdict: SuiteVerdict, event: Event) -> str:
    history = verdict.history
    entry = verdict.accepts(history.keys[event.open[0].series].case)
    reason = "" if entry is None else f", until {entry.expires}: {entry.reason}"
    return (
        f"ACCEPTED{reason}: {plural(len(event.open), 'measure')} {event.verdict} since "
        f"{day(history.jobs[event.first])}, median {signed(event.ratio)}."
    )


def _cases(history: History, event: Event) -> Section:
    rows = [
        (label(history, change.series), signed(change.ratio.value), _bounds(change.ratio))
        for change in event.changes
    ]
    left_out = f"{len(rows) - CASES} more in --json" if len(rows) > CASES else ""
    table = Table("", ("measure", "change", "95 % interval"), rows[:CASES], left_out=left_out)
    return Section(f"{event.verdict.capitalize()} since {day(history.jobs[event.first])}", tables=[table])


def _bounds(ratio: Sequence[float]) -> str:
    return f"{signed(ratio[1])} to {signed(ratio[2])}"


def _events(verdict: SuiteVerdict) -> Table:
    history = verdict.history
    rows = [
        (
            day(history.jobs[event.first]),
            event.verdict,
            "open" if event in verdict.open_events else "accepted" if event in verdict.accepted_events else NONE,
            ", ".join(suspect.name for suspect in event.suspects)
            or ("new environment" if event.environment else NONE),
            str(len(event.changes)),
            signed(event.ratio),
            str(event.found - event.first + 1),
        )
        for event in sorted(verdict.findings.events, key=lambda event: event.first)
    ]
    header = ("first run", "verdict", "state", "likely cause", "measures", "median", "found after")
    notes = [f"A change needs {AFTER} runs that agree; a series is judged from its {BEFORE + AFTER}th run on."]
    return Table("", header, rows, left=4, notes=notes)


def _suspect(history: History, suspect: Suspect) -> str:
    end = "" if suspect.ended is None else f", until {day(history.jobs[suspect.ended])}"
    times = f"{plural(suspect.runs, 'run')} with it slow since {day(history.jobs[suspect.first])}{end}"
    sure = f"{min(100 * suspect.probability, 99.9):.1f} %"
    kind = "" if suspect.kind == "hosts" else f"{suspect.kind} "
    return f"{kind}{suspect.name}, {signed(suspect.ratio)}, {times}, probability {sure}, by {suspect.source}."


def _spread(spread: Spread | None) -> list[str]:
    if spread is None or spread.deviation < VISIBLE_SPREAD:
        return []
    text = f"Host {spread.slowest} is the slowest of a usual spread, {signed(spread.ratio)}"
    return [
        f"No host stands out. {text}; the hosts differ by {100 * spread.deviation:.1f} % (standard deviation)."
    ]


def _differences(history: History, job: int) -> list[str]:
    """Return what is new in the environment of a job, or of one next to it."""
    near = [number for number in history.environment_changes() if abs(number - job) <= TOGETHER]
    changes = [
        differences(history.jobs[number - 1].environment, history.jobs[number].environment) for number in near
    ]
    return next(filter(None, changes), ["other key"])


def _environment(history: History) -> list[str]:
    points = []
    for number in history.environment_changes():
        facts = differences(history.jobs[number - 1].environment, history.jobs[number].environment)
        points.append(f"{day(history.jobs[number])}: {'; '.join(facts) or 'other key'}.")
    return points


def _calibration(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    text = (
        f"Its own noise, shuffled {calibration.rounds} times in blocks of runs: {calibration.regressed:.2f} false "
        "regressions "
        f"and {calibration.improved:.2f} false improvements per 100 runs of the whole suite."
    )
    if calibration.found is not None and calibration.delay is not None:
        delay = "-" if calibration.delay == float("inf") else f"{calibration.delay:g}"
        text += (
            f" Of steps of +5 % in one measure {100 * calibration.found:.0f} % were found within 12 runs, the "
            "median "
            f"after {delay} runs."
        )
    return [text]
