"""Page of an archive's history: the verdict, new events, all events, changes of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.analysis.change_points import AFTER, BEFORE, MIN_EFFECT
from hpcdl.analysis.nominal_rate import FLOOR
from hpcdl.analysis.slow_drift import SLOWER
from hpcdl.launch.environment import differences
from hpcdl.report.document import Document, Section, Table
from hpcdl.report.formatting import NONE, digits, interval, plural, rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.calibration import Calibration
    from hpcdl.analysis.findings_over_time import Event
    from hpcdl.analysis.history import History, Job
    from hpcdl.analysis.nominal_rate import BelowFloor
    from hpcdl.analysis.suspects import Named
    from hpcdl.analysis.verdict_over_time import Judged

CASES: Final = 10
"""Cases of a new event in the page, at most; --json has all."""
MEASURES: Final = {"step_seconds": "step", "time_p50_seconds": "p50", "seconds_to_target": "to target"}


def page(found: Judged, calibration: Calibration | None) -> Document:
    """Return the page of one suite."""
    history, judgement = found.history, found.judgement
    first, last = history.jobs[0], history.jobs[-1]
    series = f"{plural(judgement.judged + judgement.short, 'measure')} in the newest"
    runs = f"{plural(len(history.jobs), 'run')}, {day(first)} to {day(last)}, {series}."
    short = f"{judgement.short} of them have fewer than {BEFORE} runs in this environment and are not judged."
    sections = [
        Section("Verdict", [runs, *([short] if judgement.short else [])], _verdict(found)),
        *(_cases(history, one) for one in found.new_events),
        Section("Changes", tables=[_events(history, judgement.events)] if judgement.events else []),
        Section("Slow hosts and links", points=[_named(history, one) for one in judgement.named]),
        Section("Changes of the environment", points=_environment(history)),
        Section("Calibration on this archive", _calibration(calibration)),
    ]
    return Document(f"hpcdl: history of {history.suite}", [one for one in sections if one])


def day(job: Job) -> str:
    """Return the date and time of a job, UTC."""
    return job.date[:16].replace("T", " ")


def change(ratio: float) -> str:
    """Return a ratio of times as a signed share: +5.1 %."""
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 10 else f"x {digits(ratio)}"


def label(history: History, series: int) -> str:
    """Return case and measure of a series."""
    key = history.keys[series]
    return f"{key.case} ({MEASURES.get(key.measure, key.measure)})"


def sentence(history: History, event: Event) -> str:
    """Return one event in words: verdict, first run, size, cases, culprit."""
    job = history.jobs[event.first]
    worst = event.changes[0]
    text = f"{event.verdict.upper()} since {day(job)} ({job.path}): {plural(len(event.changes), 'measure')}, "
    text += f"median {change(event.ratio)}, most {label(history, worst.series)} {_size(worst.ratio)}."
    if event.culprit is not None:
        return f"{text} Likely: {_named(history, event.culprit)}"
    return f"{text} {_no_culprit(history, event)}" if event.verdict == "regressed" else text


def below_floor(history: History, one: BelowFloor) -> str:
    """Return in words that a collective is below the floor."""
    case = history.case(one.series)
    return (
        f"{case.collective}, {plural(case.ranks, 'rank')}: the best algorithm, {case.case}, has a bus bandwidth "
        f"of {rate(one.rate)} since {day(history.jobs[one.first])}, below {100 * FLOOR:g} % of the link's nominal "
        f"{rate(one.nominal)}."
    )


def _size(ratio: Sequence[float]) -> str:
    value, low, high = ratio
    return f"{change(value)} ({interval(100 * (low - 1), 100 * (high - 1), lambda one: f'{one:+.1f}')} %)"


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


def _verdict(found: Judged) -> list[str]:
    history = found.history
    points = [sentence(history, one) for one in found.new_events]
    points += [f"REGRESSED: {_named(history, one)}" for one in found.new_culprits]
    points += [
        f"REGRESSED: {label(history, one.series)} drifted by {change(one.ratio)} since "
        f"{day(history.jobs[one.first])}, beyond {100 * SLOWER:g} %."
        for one in found.new_drifts
    ]
    points += [f"REGRESSED: {below_floor(history, one)}" for one in found.new_below_floor]
    points += [f"MISSING in the newest run: {case}: {reason}" for case, reason in found.missing]
    disturbed = history.jobs[-1].disturbed
    if disturbed:
        case, cause = next(iter(disturbed.items()))
        points.append(
            f"DISTURBED in the newest run: {plural(len(disturbed), 'case')}, not judged: {case}: {cause}."
        )
    when = f"by runs since {found.since[:16].replace('T', ' ')}"
    if found.verdict == "too few runs":
        reason = f"no measure of the newest has {BEFORE} runs" if found.newest else f"none {when[3:]}"
        points.append(f"TOO FEW RUNS: {reason}.")
    elif found.verdict == "fine":
        points.append(f"FINE: no change of {100 * MIN_EFFECT:g} % or more was found {when}.")
    return points


def _cases(history: History, event: Event) -> Section:
    rows = [(label(history, one.series), change(one.ratio.value), _bounds(one.ratio)) for one in event.changes]
    left_out = f"{len(rows) - CASES} more in --json" if len(rows) > CASES else ""
    table = Table("", ("measure", "change", "95 % interval"), rows[:CASES], left_out=left_out)
    return Section(f"{event.verdict.capitalize()} since {day(history.jobs[event.first])}", tables=[table])


def _bounds(ratio: Sequence[float]) -> str:
    return f"{change(ratio[1])} to {change(ratio[2])}"


def _events(history: History, events: Sequence[Event]) -> Table:
    rows = [
        (
            day(history.jobs[one.first]),
            one.verdict,
            NONE if one.culprit is None else one.culprit.name,
            str(len(one.changes)),
            change(one.ratio),
            str(one.found - one.first + 1),
        )
        for one in sorted(events, key=lambda one: one.first)
    ]
    header = ("first run", "verdict", "likely host or link", "measures", "median", "found after")
    notes = [f"A change needs {AFTER} runs that agree; a series is judged from its {BEFORE + AFTER}th run on."]
    return Table("", header, rows, left=3, notes=notes)


def _named(history: History, one: Named) -> str:
    end = "" if one.ended is None else f", until {day(history.jobs[one.ended])}"
    times = f"{plural(one.runs, 'run')} with it slow since {day(history.jobs[one.first])}{end}"
    sure = f"{min(100 * one.probability, 99.9):.1f} %"
    return f"{one.kind} {one.name}, {change(one.ratio)}, {times}, probability {sure}, by {one.source}."


def _environment(history: History) -> list[str]:
    points = []
    for number in history.environment_changes():
        before, now = history.jobs[number - 1], history.jobs[number]
        facts = differences(before.environment, now.environment)
        points.append(f"{day(now)}: {'; '.join(facts) or 'other key'}. New series begin.")
    return points


def _calibration(found: Calibration | None) -> list[str]:
    if found is None:
        return []
    text = (
        f"Its own noise, shuffled {found.rounds} times in blocks of runs: {found.regressed:.2f} false regressions "
        f"and {found.improved:.2f} false improvements per 100 runs of the whole suite."
    )
    if found.found is not None and found.delay is not None:
        delay = "-" if found.delay == float("inf") else f"{found.delay:g}"
        text += (
            f" Of steps of +5 % in one measure {100 * found.found:.0f} % were found within 12 runs, the median "
            f"after {delay} runs."
        )
    return [text]
