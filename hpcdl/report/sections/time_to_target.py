"""Time to the target accuracy over ranks: on how many it is reached soonest, and if seeds distinguish that."""

import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.report.formats.cells import digits, interval, listed, plural, seconds, sentence, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.run.curves import LOWEST, curves
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale, Settings
from hpcdl.report.run.literature import in_words


def reached(scale: Scale) -> float | None:
    """Return the median time to the target over seeds; None if a seed missed it."""
    times = scale.values(Record.seconds_to_target)
    return statistics.median(times) if len(times) == len(scale.records) else None


def _soonest(methods: Sequence[Method], settings: Settings) -> tuple[float, str, Scale] | None:
    """Return the gain, a sentence, and the ranks that reach the target first, if ranks of a method differ.

    The gain is the time on the fewest ranks / theirs, 0 if undecided: Welch's test of the logarithms of the seeds'
    times tells other numbers of ranks of that method from it.
    """
    known = [
        (time, method, scale)
        for method in methods
        if len(method.scales) > 1 and not method.no_communication and reached(method.scales[0]) is not None
        for scale in method.scales
        if (time := reached(scale)) is not None
    ]
    if all(scale is method.scales[0] for _, method, scale in known):
        return None
    _, method, best = min(known, key=lambda one: one[0])
    others = [scale for scale in method.scales if scale is not best and reached(scale) is not None]
    times = [np.log(scale.values(Record.seconds_to_target)) for scale in (best, *others)]
    later = difference(times[:1] * len(others), times[1:])
    ratio, low, high = np.exp([later.value[0], *(bound[0] for bound in later.bounds())])
    apart = adjusted(later.p) < ALPHA
    near = [str(scale.record.ranks) for scale, told in zip(others, apart, strict=True) if not told]
    base, seeds, ranks = method.scales[0], len(best.records), plural(best.record.ranks, "rank")
    name = settings.subject(best.record, in_words(method.name, method.record) if len(methods) > 1 else "")
    reaches = f"{name} reaches {100 * (best.record.target_accuracy or 0):g} % accuracy"
    tied = f"; {listed(near)} may be as fast" if near else ""
    if best is base:
        return 0.0, f"more ranks do not save time: {reaches} first on {ranks}{tied}", best
    faster = f"{digits(ratio)} ({interval(low, high)})" if seeds > 1 else digits(ratio)
    if seeds == 1:
        compared = f"{reaches} {faster} times as fast on {ranks} as on {base.record.ranks}"
        return 0.0, f"one seed decides nothing: with it {compared}", best
    if apart[0]:
        return ratio, f"{reaches} first on {ranks}, {faster} times as fast as on {base.record.ranks}{tied}", best
    doubt = f"not decided whether {ranks} are faster than {base.record.ranks}"
    return 0.0, f"{doubt}: {reaches} {faster} times as fast", best


def answer(findings: Findings) -> Answer | None:
    """Return per problem on how many ranks the target is reached first, the largest gain first."""
    named = (_soonest(methods, findings.settings) for methods in findings.problems)
    every = sorted(filter(None, named), key=lambda soonest: -soonest[0])
    lines, basis = [sentence(text) for _, text, _ in every], [r for *_, scale in every for r in scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def charts(findings: Findings) -> list[Lines]:
    """Return one chart of the time to the target over ranks, of all methods that reach it on several."""
    lines = {
        ", ".join(filter(None, (findings.settings.name(methods[0].record), method.name))): [
            Point(scale.record.ranks, statistics.median(times), min(times), max(times))
            for scale in method.scales
            if reached(scale) is not None
            for times in [scale.values(Record.seconds_to_target)]
        ]
        for methods in findings.problems
        for method in methods
    }
    axes = Axis("ranks", whole, 2), Axis("time to the target", seconds, 2)
    note = "Medians over seeds, bars are their range. Ranks without a value have a seed that missed the target."
    return curves("Time to the target over ranks", axes, lines, note, best=LOWEST)


SECTION: Final = Declaration(
    49, lambda _: Section("Time to the target over ranks"), answer=answer, figures=(charts,), table="scaling"
)
