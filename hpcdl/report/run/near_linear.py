"""Near-linear or not: the verdict on a case, and the sentences on how far the methods of each problem are."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.report.formats.cells import digits, listed, plural, sentence
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.declaration import Answer
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale
from hpcdl.report.run.literature import in_words

MAX_WORDS: Final = 30
"""Words of a headline, at most."""
ONE_LAUNCH: Final = "one launch"
FEW_STEPS: Final = "too few steps for an interval"
INSIDE: Final = f"{NEAR_LINEAR:.2f} is inside the interval"
CHANCE: Final = "may be chance"
REASONS: Final = {
    "disturbed": "other load disturbed the measurement, an efficiency of {}",
    ONE_LAUNCH: "the efficiency, {}, is of one launch, which does not show how launches vary",
    FEW_STEPS: "too few steps were measured for an interval of the efficiency, {}",
    INSIDE: f"the limit, {NEAR_LINEAR:.2f}, is inside the interval of the efficiency, {{}}",
    CHANCE: f"the efficiency, {{}}, may differ from {NEAR_LINEAR:.2f} by chance; more launches would decide",
}
"""Sentences on why it is not decided whether a case is near-linear, by the word of the table."""


def verdict(scale: Scale) -> str:
    """Return whether a case is near-linear: yes, no, disturbed, or not decided with the reason."""
    if scale.disturbed:
        return "disturbed"
    if scale.near_linear is not None:
        return "yes" if scale.near_linear else "no"
    low, high = scale.bounds(Record.efficiency)
    if scale.is_one_launch:
        reason = ONE_LAUNCH
    elif low is None or high is None:
        reason = FEW_STEPS
    else:
        reason = INSIDE if low < NEAR_LINEAR <= high else CHANCE
    return f"not decided: {reason}"


def answer(findings: Findings) -> Answer | None:
    """Return how far each problem is near-linear, and with which method."""
    overviews = list[Overview]()
    for methods in findings.problems:
        compared = [method for method in methods if method.is_compared and not method.no_communication]
        compared = [method for method in compared if method.scales[-1].values(Record.efficiency)]
        name = findings.settings.subject(methods[0].record)
        if compared:
            overviews.append(_overview(name, compared))
    overviews.sort(key=lambda overview: (-overview.reached, overview.end.disturbed, -overview.end.record.ranks))
    lines = [sentence(overview.verdict.sentence) for overview in overviews]
    lines += [line for overview in overviews for line in overview.ways]
    if not lines:
        return None
    headline = f"{lines[0].removesuffix('.')}{_others(overviews)}."
    if len(headline.split()) > MAX_WORDS:
        headline = lines[0]
    basis = [record for overview in overviews for scale in overview.scales for record in scale.records]
    return Answer(headline, lines[1:], basis, good=overviews[0].verdict.row.good)


class Overview(NamedTuple):
    """Verdict on the best method of a problem."""

    reached: int
    """Ranks that it reaches near-linearly; 0: none."""
    end: Scale
    """Largest scale of that method."""
    verdict: Verdict
    ways: Sequence[str]
    """Sentence on all methods on as many ranks; none if there is one."""
    scales: Sequence[Scale]
    """Scales of all methods that have an efficiency."""


def _overview(name: str, methods: Sequence[Method]) -> Overview:
    best = max(methods, key=lambda method: (_ranks_reached(method), _end(method)))  # the first of equal ones
    scales = [scale for method in methods for scale in method.scales if scale.values(Record.efficiency)]
    if near := _near_scale(best):
        verdict, ways = _near_linear(name, best, near), _ways(name, methods, near.record)
    else:
        verdict, ways = _not_near_linear(name, methods, best), []
    return Overview(_ranks_reached(best), best.scales[-1], verdict, ways, scales)


def _others(overviews: Sequence[Overview]) -> str:
    """Return the end of a sentence on the first problem if it alone is near-linear, and no other is undecided."""
    first, *others = overviews
    whole = first.reached == first.end.record.ranks
    if not (whole and others and all(other.verdict.word == "not near-linear" for other in others)):
        return ""
    return f"; {listed([other.verdict.case for other in others])} {'does' if len(others) == 1 else 'do'} not"


def _near_scale(method: Method) -> Scale | None:
    """Return the largest scale up to which a method is near-linear, else the largest that is."""
    near = method.near_linear or [scale for scale in method.beyond if scale.near_linear]
    return near[-1] if near else None


def _ranks_reached(method: Method) -> int:
    near = _near_scale(method)
    return near.record.ranks if near else 0


def _ranks(record: Record) -> str:
    """Return the number of ranks in words: hosts, if each has one rank."""
    return plural(record.ranks, "host" if record.nodes == record.ranks else "rank")


def _efficiency(scale: Scale) -> str:
    low, high = map(digits, scale.bounds(Record.efficiency))
    return digits(scale.median(Record.efficiency)) + (f" ({low} to {high})" if low != high else "")


def _near_linear(name: str, best: Method, near: Scale) -> Verdict:
    last, beyond = best.beyond[-1], ""
    if near is not last:
        failed = f"on {last.record.ranks} the efficiency is {digits(last.median(Record.efficiency))}"
        beyond = f"; {failed if last.near_linear is False else f'it is not decided for {last.record.ranks}'}"
    facts = {
        "efficiency": _efficiency(near),
        "ranks": ("on " if near is last or near not in best.near_linear else "up to ") + _ranks(near.record),
        "method": in_words(best.name, best.record),
        "beyond": beyond,
    }
    return Verdict(topic="scaling", word="near-linear", case=name, facts=facts)


def _ways(name: str, methods: Sequence[Method], record: Record) -> list[str]:
    """Return a sentence on which of several methods are near-linear on as many ranks as ``record``."""
    alike = [method for method in methods if any(scale.record.ranks == record.ranks for scale in method.beyond)]
    near = [
        method for method in alike if any(s.near_linear for s in method.beyond if s.record.ranks == record.ranks)
    ]
    names = listed([in_words(method.name, method.record) for method in near])
    counted = f"On {_ranks(record)} {len(near)} of {len(alike)} methods are near-linear for {name}: {names}."
    return [counted] if len(alike) > 1 else []


def _not_near_linear(name: str, methods: Sequence[Method], best: Method) -> Verdict:
    ends = [method.scales[-1] for method in methods]
    last = max(ends, key=lambda end: end.record.ranks)
    failed = sum(end.near_linear is False for end in ends) > len(ends) / 2
    if not failed:
        open_end = next(end for end in ends if end.near_linear is None)
        reason = REASONS[verdict(open_end).removeprefix("not decided: ")]
        facts = {"ranks": _ranks(open_end.record), "reason": reason.format(_efficiency(open_end))}
        return Verdict(topic="scaling", word="inconclusive", case=name, facts=facts)
    known = [scale for method in methods for scale in method.scales if scale.values(Record.speedup)]
    fastest, least = max(known, key=lambda scale: scale.median(Record.speedup) or 0.0), best.beyond[0]
    below = least.near_linear is False and least.record.ranks < best.beyond[-1].record.ranks
    slower = fastest.record.ranks < last.record.ranks
    speedup = f"{digits(fastest.median(Record.speedup))}, on {fastest.record.ranks}"
    value = _efficiency(best.scales[-1])
    facts = {
        "ranks": _ranks(best.scales[-1].record)
        + (f", nor on {least.record.ranks}" if below and not slower else ""),
        "efficiency": f"its best method has an efficiency of {value}" if len(ends) > 1 else f"efficiency {value}",
        "fastest": f"; the largest speedup is {speedup}" if slower else "",
    }
    return Verdict(topic="scaling", word="not near-linear", case=name, facts=facts)


def _end(method: Method) -> float:
    return method.scales[-1].median(Record.efficiency) or 0.0
