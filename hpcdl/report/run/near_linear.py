"""Near-linear or not: the verdict on a case, and the sentences on how far the methods of each problem are."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.report.formats.cells import digits, listed, plural, sentence
from hpcdl.report.run.declaration import Answer
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale
from hpcdl.report.run.literature import in_words

MAX_WORDS: Final = 30
"""Words of a headline, at most."""
CHANCE: Final = "may be chance"
INSIDE: Final = f"{NEAR_LINEAR:.2f} is inside the interval"
REASONS: Final = {
    "disturbed": "other load disturbed the measurement, an efficiency of {}",
    "one launch": "the efficiency, {}, is of one launch, which does not show how launches vary",
    "too few steps for an interval": "too few steps were measured for an interval of the efficiency, {}",
    INSIDE: f"the limit, {NEAR_LINEAR:.2f}, is inside the interval of the efficiency, {{}}",
    CHANCE: f"the efficiency, {{}}, may differ from {NEAR_LINEAR:.2f} by chance; more launches would decide",
}
"""Sentences on why it is not decided whether a case is near-linear, by the word of the table."""


def verdict(scale: Scale) -> str:
    """Return whether a case is near-linear: yes, no, disturbed, or not decided with the reason."""
    if scale.disturbed or scale.near_linear is not None:
        return "disturbed" if scale.disturbed else "yes" if scale.near_linear else "no"
    low, high = scale.bounds(Record.efficiency)
    if any(not record.network and 1 in {record.launches, record.base_launches} for record in scale.records):
        return "not decided: one launch"
    if low is None or high is None:
        return "not decided: too few steps for an interval"
    return f"not decided: {INSIDE if low < NEAR_LINEAR <= high else CHANCE}"


def answer(findings: Findings) -> Answer | None:
    """Return how far each problem is near-linear, and with which method."""
    overviews = list[Overview]()
    for methods in findings.problems:
        compared = [method for method in methods if method.is_compared and not method.no_communication]
        compared = [method for method in compared if method.scales[-1].values(Record.efficiency)]
        if compared:
            overviews.append(_overview(findings.settings.subject(methods[0].record), compared))
    if not overviews:
        return None
    overviews.sort(key=lambda overview: (-overview.reached, overview.end.disturbed, -overview.end.record.ranks))
    first, *others = (sentence(overview.line) for overview in overviews)
    headline = f"{first.removesuffix('.')}{_others(overviews)}."
    headline = headline if len(headline.split()) <= MAX_WORDS else first
    lines = [*others, *(line for overview in overviews for line in overview.ways)]
    basis = [record for overview in overviews for scale in overview.scales for record in scale.records]
    return Answer(headline, lines, basis, good=overviews[0].reached > 0)


class Overview(NamedTuple):
    """How far the best method of a problem is near-linear."""

    name: str
    scales: Sequence[Scale]
    """Scales of all methods that have an efficiency."""
    end: Scale
    """Largest scale of the best method."""
    line: str
    reached: int = 0
    """Ranks that it reaches near-linearly; 0: none."""
    fails: bool = False
    """True if most methods are not near-linear, so that none is."""
    ways: Sequence[str] = ()
    """Sentence on all methods on as many ranks; none if there is one."""


def _overview(name: str, methods: Sequence[Method]) -> Overview:
    best = max(methods, key=_rank)  # the first of equal ones
    scales = [scale for method in methods for scale in method.scales if scale.values(Record.efficiency)]
    if near := _near_scale(best):
        line, ranks = _near_linear(name, best, near), near.record.ranks
        return Overview(name, scales, best.scales[-1], line, ranks, ways=_ways(name, methods, near.record))
    line, fails = _not_near_linear(name, methods, best)
    return Overview(name, scales, best.scales[-1], line, fails=fails)


def _others(overviews: Sequence[Overview]) -> str:
    """Return the end of a sentence on the first problem if it alone is near-linear, and no other is undecided."""
    first, *others = overviews
    whole = first.reached == first.end.record.ranks
    if not (whole and others and all(other.fails for other in others)):
        return ""
    return f"; {listed([other.name for other in others])} {'does' if len(others) == 1 else 'do'} not"


def _near_scale(method: Method) -> Scale | None:
    """Return the largest scale up to which a method is near-linear, else the largest that is."""
    near = method.near_linear or [scale for scale in method.beyond if scale.near_linear]
    return near[-1] if near else None


def _rank(method: Method) -> tuple[int, float]:
    """Return the ranks that a method reaches near-linearly, and its efficiency on the most ranks."""
    near = _near_scale(method)
    return near.record.ranks if near else 0, method.scales[-1].median(Record.efficiency) or 0.0


def _ranks(record: Record) -> str:
    """Return the number of ranks in words: hosts, if each has one rank."""
    return plural(record.ranks, "host" if record.nodes == record.ranks else "rank")


def _efficiency(scale: Scale) -> str:
    low, high = map(digits, scale.bounds(Record.efficiency))
    return digits(scale.median(Record.efficiency)) + (f" ({low} to {high})" if low != high else "")


def _near_linear(name: str, best: Method, near: Scale) -> str:
    last, beyond = best.beyond[-1], ""
    if near is not last:
        failed = f"on {last.record.ranks} the efficiency is {digits(last.median(Record.efficiency))}"
        beyond = f"; {failed if last.near_linear is False else f'it is not decided for {last.record.ranks}'}"
    ranks = ("on " if near is last or near not in best.near_linear else "up to ") + _ranks(near.record)
    method = in_words(best.name, best.record)
    return f"{name} stays near-linear {ranks} with {method}: efficiency {_efficiency(near)}{beyond}"


def _ways(name: str, methods: Sequence[Method], record: Record) -> list[str]:
    """Return a sentence on which of several methods are near-linear on as many ranks as ``record``."""
    alike = [(m, scale) for m in methods for scale in m.beyond if scale.record.ranks == record.ranks]
    near = [in_words(method.name, method.record) for method, scale in alike if scale.near_linear]
    count = f"On {_ranks(record)} {len(near)} of {len(alike)} methods are near-linear"
    return [f"{count} for {name}: {listed(near)}."] if len(alike) > 1 else []


def _not_near_linear(name: str, methods: Sequence[Method], best: Method) -> tuple[str, bool]:
    """Return a sentence, and True if it is decided that the method is not near-linear."""
    ends = [method.scales[-1] for method in methods]
    if sum(end.near_linear is False for end in ends) <= len(ends) / 2:
        end = next(end for end in ends if end.near_linear is None)
        reason = REASONS[verdict(end).removeprefix("not decided: ")].format(_efficiency(end))
        return f"No verdict on near-linear scaling of {name} at {_ranks(end.record)}: {reason}", False
    known = [scale for method in methods for scale in method.scales if scale.values(Record.speedup)]
    fastest, least = max(known, key=lambda scale: scale.median(Record.speedup) or 0.0), best.beyond[0]
    slower = fastest.record.ranks < max(end.record.ranks for end in ends)
    below = least.near_linear is False and least.record.ranks < best.beyond[-1].record.ranks
    most = _ranks(best.scales[-1].record)
    place = f" on {most}" if below and not slower else ""
    text = f"{name} is not near-linear on {_ranks(least.record) if place else most}"
    value = f"{_efficiency(best.scales[-1])}{place}"
    text += f": its best method has an efficiency of {value}" if len(ends) > 1 else f": efficiency {value}"
    speedup = f"; the largest speedup is {digits(fastest.median(Record.speedup))}, on {fastest.record.ranks}"
    return text + speedup * slower, True
