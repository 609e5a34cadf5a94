"""Page of an archive's history: the verdict, new events, all events, changes of the environment.

In HTML it has figures of the measures that changed, and a table of all measures, too.
"""

import datetime as dt
import math
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from hpcdl.analysis.over_time import pairing
from hpcdl.analysis.over_time.change_points import AFTER, BEFORE, MIN_EFFECT, REMEMBERED, Change
from hpcdl.analysis.over_time.series import History, Job
from hpcdl.analysis.over_time.suspects import Suspect
from hpcdl.analysis.over_time.verdict import TOGETHER, Event, SuiteVerdict
from hpcdl.analysis.run.record import group_by_key
from hpcdl.analysis.statistics.differences import Vector
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.exit_codes import FAILED, INCONCLUSIVE
from hpcdl.report.comparison import environment_changes
from hpcdl.report.formats.cells import HIGHER, NONE, Number, digits, interval, longer, plural, seconds, signed
from hpcdl.report.formats.document import Axis, Document, Lines, Point, Section, Series, headed
from hpcdl.report.formats.tables import Table
from hpcdl.report.formats.verdicts import Verdict, exit_code
from hpcdl.report.run.link_counters import Beyond, compared, grown_beyond, sentence
from hpcdl.trace.link_counters import recorded

LEAST: Final = f"{100 * MIN_EFFECT:g} %"
"""Smallest change that is a regression."""
CASES: Final = 10
"""Cases of a new event in the page, at most; --json has all."""


def page(verdict: SuiteVerdict, *, whole: bool = False) -> Document:
    """Return the page of one suite; ``whole``: with all measures, and figures of those that changed."""
    history, calibration = verdict.history, verdict.calibration
    measures = plural(sum(bool(np.isfinite(times[-1])) for times in history.seconds), "measure")
    when = f"{day(history.jobs[0])} to {day(history.jobs[-1])}"
    runs = f"{plural(len(history.jobs), 'run')}, {when}, {measures} in the newest."
    slow = [f"{_name(suspect)} {_slowness(history, suspect)}." for suspect in verdict.suspects]
    environments = [f"{day(history.jobs[job])}: {'; '.join(_environment(history, job))}."
                    for job in history.environment_changes()]  # fmt: skip
    noise = []
    if calibration is not None:
        rates = f"{calibration.regressed:.2f} false regressions and {calibration.improved:.2f} false improvements"
        rounds = f"{calibration.rounds} times in blocks of runs"
        noise = [f"If the noise of this archive is shuffled {rounds}, history reports {rates} per 100 runs."]
    sections = [
        Section("Measures that changed", charts=of_changed(verdict) if whole else []),
        *(_cases(history, event) for event in (*verdict.open_events, *verdict.news)),
        Section("Changes", tables=[_events(verdict)] if verdict.events else []),
        Section("Slow hosts and links", points=slow),
        compared(link_counters(history, len(history.jobs) - 1)),
        Section("Changes of the environment", points=environments),
        Section("Calibration on this archive", noise),
        Section("All measures", tables=[_table(verdict)] if whole else []),
    ]
    return headed(f"hpcdl: history of {history.suite}", verdicts(verdict), sections, state=runs)


def pages(suites: Sequence[SuiteVerdict], other: Sequence[Verdict] = (), *, whole: bool = False) -> list[Document]:
    """Return the page of each suite, and one for each of the ``other`` verdicts, which are of no suite."""
    of_suites = [page(suite, whole=whole) for suite in suites]
    return of_suites + [headed("hpcdl: history", [verdict], []) for verdict in other]


def day(job: Job) -> str:
    """Return the date and time of a job, UTC."""
    return f"{job.began:%Y-%m-%d %H:%M}"


def label(history: History, series: int) -> str:
    """Return case and measure of a series."""
    key = history.keys[series]
    return pairing.label(key.case, key.measure)


def group(history: History, series: int) -> str:
    """Return the kind of case, ranks and measure of a series."""
    case = history.case(series)
    return f"{case.kind}, {case.ranks} ranks, {history.keys[series].measure}"


def of_event(verdict: SuiteVerdict, event: Event) -> Verdict:
    """Return the verdict on one event: the most changed measure, its size, first run, and the likely cause.

    Of an open event only open changes count.
    """
    history, changes = verdict.history, verdict.unaccepted(event) or event.open or event.changes
    measure = history.keys[changes[0].series].measure
    shown = partial(_level, measure)
    size, (before, now) = changes[0].ratio, _levels(changes[0])
    facts = {"date": day(history.jobs[event.first]), "others": _others(len(changes) - 1)}
    word: str = event.verdict
    if word == "unstable start":
        series = {change.series for change in event.changes}
        waits = [waiting.runs for waiting in verdict.waiting(word) if waiting.series in series]
        word = word if waits else "start"
        facts["when"] = verdict.date_after(max(waits, default=0))
    if event in verdict.accepted_events:
        entry, _ = verdict.of_change(event.open[0])
        assert entry is not None
        word, facts["until"], facts["reason"] = "accepted", str(entry.expires), entry.reason
    elif word in {"regressed", "returned"} and not event.open:
        word = "small" if all(change.is_small for change in event.changes) else "repaired"
    facts["most"] = _changed(measure, size, past=word == "repaired")
    remedy = ""
    if event in verdict.open_events[:1] and history.case(changes[0].series).kind != "series":
        runs = [job.path for job in history.jobs[max(0, event.first - AFTER) : event.first + AFTER]]
        stated = history.jobs[event.first].runs[0].environment.get("stated", {})  # of a log, by --log
        options = [word for key, value in stated.items() for word in ("--log", f"{key}={value}")]
        words = shlex.join([*options, *runs[:-AFTER], "--with", *runs[-AFTER:]])
        remedy = f"Compare the runs: hpcdl compare {words}"
    return Verdict(
        topic="history",
        word=word,
        case=label(history, changes[0].series),
        size=size,
        cause=" ".join(_causes(verdict, event)),
        remedy=remedy,
        facts={**facts, "before": shown(before), "now": shown(now), "least": LEAST},
        tests=frozenset(group(history, change.series) for change in event.open),
    )


def _changed(measure: str, size: Interval, *, past: bool = False) -> str:
    """Return the predicate of a sentence about a change: of a time, or of another tool's rate."""
    if not measure.startswith("inverse "):
        return f"{'took' if past else 'takes'} {longer(*size)}"
    rate, high, low = (1 / ratio for ratio in size)
    return f"{'was' if past else 'is'} {longer(rate, low, high, HIGHER)}"


def _level(measure: str, value: Number) -> str:
    """Return a time, or a value of a series of another tool with its unit, as it is printed."""
    unit = measure.removeprefix("inverse ")
    if measure.endswith(("_seconds", "_to_target")):
        return seconds(value)
    return f"{digits(1 / value if value and unit != measure else value)} {unit}".removesuffix(" value")


def _levels(change: Change) -> tuple[float, float]:
    """Return the times before and after a change (s)."""
    before = math.exp(change.before)
    return before, before * change.ratio.value


def _causes(verdict: SuiteVerdict, event: Event) -> list[str]:
    """Return sentences on likely causes of an event, and on acceptances that do not cover it."""
    history = verdict.history
    causes = [f"Likely cause: {_name(suspect)} {_slowness(history, suspect)}." for suspect in event.suspects]
    causes += filter(None, [sentence(link_counters(history, event.first))])
    changes = [job for job in history.environment_changes() if abs(job - event.first) <= TOGETHER]
    if event.environment and changes:
        fact, *others = _environment(history, changes[0])
        more = f" ({plural(len(others), 'more difference')})" if others else ""
        causes.append(f"{'Slower' if event.is_slower else 'Faster'} since the environment changed: {fact}{more}.")
    refusals = [verdict.of_change(change)[1] for change in event.open]
    return causes + [f"It is {refusal}." for refusal in dict.fromkeys(refusals) if refusal]


def verdicts(verdict: SuiteVerdict) -> list[Verdict]:
    """Return all verdicts on a suite today, the worst first; exit codes are made of them."""
    history, newest = verdict.history, verdict.history.jobs[-1]
    news = [of_event(verdict, event) for event in verdict.open_events]
    news += [
        _says("slow", _name(suspect), verdict.of_suspect(suspect)[1], slowness=_slowness(history, suspect))
        for suspect in verdict.open_suspects
    ]
    news += [_says("missing", case, verdict.acceptance(case)[1], reason=why) for case, why in verdict.missing]
    if verdict.age is not None:
        news.append(_says("stale", date=day(newest), hours=f"{verdict.age.total_seconds() / 3600:.0f}"))
    news += [of_event(verdict, event) for event in verdict.news]
    unstable = [of_event(verdict, event) for event in verdict.events if event.verdict == "unstable start"]
    news += [said for said in unstable if said.word == "unstable start"]
    news += _far(verdict, "suspected change")
    old = [of_event(verdict, event) for event in verdict.accepted_events]
    if muted := sorted(verdict.search.muted, key=lambda change: -abs(math.log(change.ratio.value))):
        low, high = sorted(_levels(muted[0]))
        shown = partial(_level, history.keys[muted[0].series].measure)
        facts = {"low": shown(low), "high": shown(high), "others": _others(len(muted) - 1)}
        old.append(_says("bimodal", label(history, muted[0].series), first=str(REMEMBERED), **facts))
    counted = {key.case for key, seconds in zip(history.keys, history.seconds[:, -1], strict=True) if seconds > 0}
    for word, counts in (("disturbed", False), ("disturbed as usual", True)):
        if cases := [case for case in newest.disturbed if (case in counted) == counts]:
            old.append(_says(word, cases[0], cases=plural(len(cases), "case"), reason=newest.disturbed[cases[0]]))
    short = verdict.waiting("short")
    when = verdict.date_after(max((series.runs for series in short), default=BEFORE + AFTER))
    wait = {"least": str(BEFORE + AFTER), "when": when}
    if not verdict.judged and not verdict.waiting("unstable start"):
        old.append(_says("too few runs", **wait))
    else:
        if not news:
            old.append(_says("fine", least=LEAST, measures=plural(verdict.judged, "measure")))
        if short:
            old.append(_says("short", measures=plural(len(short), "measure"), **wait))
    if verdict.search.drifts:
        old.append(_says("drift"))
    return [*news, *old, *_far(verdict, "outlier")]


def _says(word: str, case: str = "", refusal: str = "", **facts: str) -> Verdict:
    return Verdict(topic="history", word=word, case=case, cause=refusal and f"It is {refusal}.", facts=facts)


def _far(verdict: SuiteVerdict, reason: str) -> list[Verdict]:
    """Return the verdict on the measures whose newest runs are far above all before, if there are any."""
    waiting = verdict.waiting(reason)
    if not waiting:
        return []
    worst = max(waiting, key=lambda series: series.ratio)
    facts = {
        "change": _changed(verdict.history.keys[worst.series].measure, Interval(worst.ratio, *NOTHING[1:])),
        "runs": "run" if worst.outliers == 1 else f"of {worst.outliers} slow runs",
        "others": _others(len(waiting) - 1),
        "when": verdict.date_after(max(series.runs for series in waiting)),
    }
    return [_says(reason, label(verdict.history, worst.series), **facts)]


def _others(number: int) -> str:
    return f", and {plural(number, 'other measure')} too" if number else ""


def worst(said: Sequence[Verdict]) -> str:
    """Return the worst of a suite's verdicts in a word: regressed, not judged, too few runs, improved or fine."""
    words, code = {verdict.word for verdict in said}, exit_code(said)
    if code == FAILED:
        return "regressed"
    if code == INCONCLUSIVE:
        return "too few runs" if "too few runs" in words else "not judged"
    return "improved" if words & {"improved", "restored"} else "fine"


def _cases(history: History, event: Event) -> Section:
    rows = [
        (label(history, change.series), signed(change.ratio.value), interval(*change.ratio[1:], signed))
        for change in event.changes
    ]
    left_out = f"{len(rows) - CASES} more in --json" if len(rows) > CASES else ""
    table = Table("", ("measure", "change", "95 %"), rows[:CASES], left_out=left_out)
    title = f"{event.verdict.capitalize()} since {day(history.jobs[event.first])}"
    return Section(title, [f"First run: {history.jobs[event.first].path}."], tables=[table])


def _events(verdict: SuiteVerdict) -> Table:
    rows = [
        (
            day(verdict.history.jobs[event.first]),
            event.verdict,
            "open" if event in verdict.open_events else "accepted" if event in verdict.accepted_events else NONE,
            ", ".join(suspect.name for suspect in event.suspects)
            or ("new environment" if event.environment else NONE),
            str(len(event.changes)),
            signed(of_event(verdict, event).size.value),
            str(event.found - event.first + 1),
        )
        for event in sorted(verdict.events, key=lambda event: event.first)
    ]
    header = ("first run", "verdict", "state", "likely cause", "measures", "largest", "found after")
    notes = [
        "Largest: change of the measure that changed most. Found after: number of runs until it was found.",
        f"A change needs {AFTER} runs that agree; a series is judged from its {BEFORE + AFTER}th run on.",
    ]
    return Table("", header, rows, left=4, notes=notes, answers=("largest", "verdict"))


def _name(suspect: Suspect) -> str:
    names = {"neighbours": f"hosts {suspect.name} (one switch?)", "hosts": suspect.name}
    return names.get(suspect.kind, f"{suspect.kind} {suspect.name}")


def _slowness(history: History, suspect: Suspect) -> str:
    """Return the predicate of a sentence about a slow host or link."""
    end = "" if suspect.ended is None else f", until {day(history.jobs[suspect.ended])}"
    runs = f"{plural(suspect.runs, 'run')} since {day(history.jobs[suspect.first])}{end}"
    verb = "took" if end else "takes"
    return f"{verb} {longer(suspect.ratio)} than usual in {runs}, by {suspect.source}"


def link_counters(history: History, job: int) -> Beyond:
    """Return the counters of links that grew more in a job than in the jobs before it."""
    before, now = (
        [recorded(run.environment) for job in jobs for run in job.runs]
        for jobs in (history.jobs[max(0, job - 30) : job], history.jobs[job : job + 1])
    )
    return grown_beyond(before, now)


def _environment(history: History, job: int) -> list[str]:
    """Return the differences between the environment of a job and of the job before."""
    return environment_changes(history.jobs[job - 1].runs, history.jobs[job].runs, other=True)


EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TICKS: Final = 4
"""Dates on an axis."""
NOTE: Final = "Dashed: the median between changes. Another environment begins a new line."


def of_changed(verdict: SuiteVerdict) -> list[Lines]:
    """Return one chart per measure with a change: open ones first, the largest first."""
    changes = _changes(verdict)
    new = {change.series for event in verdict.open_events for change in event.open}
    sizes = {row: max(abs(np.log(change.ratio.value)) for change in mine) for row, mine in changes.items()}
    ordered = sorted(sizes, key=lambda row: (row not in new, -sizes[row]))
    measures = dict.fromkeys(verdict.history.keys[row][:3] for row in ordered)
    return [_chart(verdict.history, verdict.history.measures[key], changes) for key in measures]


def _changes(verdict: SuiteVerdict) -> dict[int, list[Change]]:
    ordered = sorted(verdict.search.changes, key=lambda change: change.first)
    return group_by_key((change.series, change) for change in ordered)


def _chart(history: History, rows: Sequence[int], changes: dict[int, list[Change]]) -> Lines:
    x = [(job.began - EPOCH) / dt.timedelta(days=1) for job in history.jobs]
    lines, levels = [], []
    for number, row in enumerate(rows, 1):
        values, cuts = history.seconds[row], [change.first for change in changes.get(row, ())]
        times = [Point(x[run], float(values[run])) for run in np.flatnonzero(np.isfinite(values))]
        lines.append(Series("time" if len(rows) == 1 else f"environment {number}", times))
        levels.append(Series("level", levels_of(values, cuts, x), "reference"))
    every = [change for row in rows for change in changes.get(row, ())]
    measure = history.keys[rows[0]].measure
    text = "; ".join(
        f"{_changed(measure, change.ratio)} since {day(history.jobs[change.first])}" for change in every
    )
    note = f"The measure {text}. {NOTE}" if text else NOTE
    axis = Axis("time", partial(_level, measure))
    return Lines(label(history, rows[0]), _dates(x), axis, [*lines, *levels], note)


def levels_of(values: Vector, cuts: Sequence[int], x: Sequence[float]) -> list[Point]:
    """Return the medians between changes, as corners of a step function.

    ``values``: (runs,), NaN if missing; ``cuts``: first runs after the changes, ascending; ``x``: (runs,).
    """
    points = []
    for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        runs = begin + np.flatnonzero(np.isfinite(values[begin:end]))
        if len(runs):  # else a change before the first run in its environment
            level = float(np.median(values[runs]))
            points += [Point(x[runs[0]], level), Point(x[end if end < len(values) else runs[-1]], level)]
    return points


def _dates(x: Sequence[float]) -> Axis:
    """Return an axis of dates; of times of day if the runs are of a few days."""
    few, ticks = max(x) - min(x) < TICKS, np.linspace(min(x), max(x), TICKS)
    form = "%m-%d %H:%M" if few else "%Y-%m-%d"

    def shown(value: Number) -> str:
        return NONE if value is None else (EPOCH + dt.timedelta(days=value)).strftime(form)

    return Axis("run", shown, ticks=(ticks if few else np.unique(ticks.round())).tolist())


def _table(verdict: SuiteVerdict) -> Table:
    """Return one row per series: its runs, its newest time and its level since the last change."""
    history, changes, rows = verdict.history, _changes(verdict), []
    far = {series.series: series.ratio for series in verdict.waiting("suspected change", "outlier")}
    for row in sorted(range(len(history.keys)), key=lambda row: row not in changes):
        values, cuts = history.seconds[row], [change.first for change in changes.get(row, ())]
        newest = float(values[-1])
        level = newest / far[row] if row in far else float(np.nanmedian(values[max(cuts, default=0) :]))
        rows.append(
            (
                label(history, row),
                str(int(np.isfinite(values).sum())),
                _level(history.keys[row].measure, newest),
                signed(newest / level),
                _level(history.keys[row].measure, level),
                str(len(cuts) or NONE),
                day(history.jobs[max(cuts)]) if cuts else NONE,
            )
        )
    header = ("measure", "runs", "newest", "change", "level", "changes", "last change")
    notes = [
        "Level: median since the last change, without newest runs that are far above it. Change: newest / level.",
        "Newest: a dash if the newest run lacks the measure.",
    ]
    return Table("", header, rows, notes=notes, answers=["change"])
