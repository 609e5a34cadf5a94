"""Collectives on several topologies: how slow each scheme gets where messages share links."""

import math
from collections.abc import Mapping
from statistics import median
from typing import Final

from hpcdl.registry import label
from hpcdl.report.formats.cells import digits, plural, seconds, volume
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import capital, link_title, title_of
from hpcdl.report.run.operations import collective_name

SLOW: Final = 2.0
"""Multiple of the fastest scheme's time from which on a scheme is slow."""
FAR: Final = 10.0
"""Multiple of the best scheme's longest time beyond which a scheme is not drawn."""
NOTE: Final = "Worst: largest value, over the topologies, of the scheme's time / the time of the fastest scheme."

Operation = tuple[str | None, int | None, int, str | None]
"""Collective, bytes of the message, ranks and network."""

Times = dict[str, dict[str, float]]
"""By scheme and topology, seconds."""


def _collectives(findings: Findings) -> list[tuple[Operation, Times, dict[str, float]]]:
    """Return collectives simulated on several topologies, the best worst case first, and the fastest times."""
    groups: dict[Operation, Times] = {}
    for record in findings.records:
        topology = record.settings.get("topology")
        if record.kind == "collective" and topology and record.time_p50_seconds:
            what = (record.collective, record.message_bytes, record.ranks, record.network)
            times = groups.setdefault(what, {}).setdefault(str(record.aggregation), {})
            times[label(topology)] = record.time_p50_seconds
    made = list[tuple[Operation, Times, dict[str, float]]]()
    for what, schemes in groups.items():
        names = dict.fromkeys(name for times in schemes.values() for name in times)
        fastest = {name: min(times.get(name, math.inf) for times in schemes.values()) for name in names}
        worst = {scheme: _worst(times, fastest) for scheme, times in schemes.items()}
        ordered = {scheme: schemes[scheme] for scheme in sorted(worst, key=worst.__getitem__)}
        made += [(what, ordered, fastest)] if len(fastest) > 1 else []
    return made


def _worst(times: Mapping[str, float], fastest: Mapping[str, float]) -> float:
    """Return the largest quotient of a scheme's time / the fastest; infinity if it lacks a topology."""
    return max(times.get(name, math.inf) / time for name, time in fastest.items())


def page(findings: Findings) -> Section:
    """Return one table per collective, a column for each topology."""
    tables = []
    for what, schemes, fastest in _collectives(findings):
        rows = [
            (name, *(seconds(times.get(topology)) for topology in fastest), digits(_worst(times, fastest)))
            for name, times in schemes.items()
        ]
        tables.append(Table(_named(what), ("algorithm", *fastest, "worst"), rows, 1, [NOTE]))
    return Section("Contention", tables=tables)


def _named(what: Operation) -> str:
    collective, message, ranks, network = what
    return f"{collective}, {volume(message)}, {plural(ranks, 'rank')}, {network}"


def answer(findings: Findings) -> Answer | None:
    """Return the scheme that is least behind the fastest of each topology, and the fastest on each."""
    lines = []
    for (collective, message, ranks, network), schemes, fastest in _collectives(findings):
        best, times = next(iter(schemes.items()))
        worst = _worst(times, fastest)
        slow = f"no scheme is always fast: {title_of(best)}, the best,"
        verdict = slow if worst > SLOW else f"{title_of(best)} is never slow: on every topology it"
        where = f"{collective_name(collective or '')} of {volume(message)}, {link_title(network or '')}"
        ratio = f"{digits(worst)} times as long as the fastest scheme"
        lines.append(f"On {plural(ranks, 'rank')} {verdict} takes at most {ratio} ({where}).")
        winners: dict[str, list[str]] = {}
        for name, time in fastest.items():
            winner = title_of(next(scheme for scheme, times in schemes.items() if times.get(name) == time))
            winners.setdefault(capital(winner), []).append(title_of(name))
        lines += [f"{winner} is fastest on {', '.join(names)}." for winner, names in winners.items()]
    return Answer(lines[0], lines[1:]) if lines else None


def charts(findings: Findings) -> list[Intervals]:
    """Return the range of each scheme over the topologies."""
    made = []
    for what, schemes, _ in _collectives(findings):
        best = next(iter(schemes))
        spans = {name: (median(t.values()), min(t.values()), max(t.values())) for name, t in schemes.items()}
        limit = spans[best][2]
        near = {name: span for name, span in spans.items() if span[2] < FAR * limit}
        drawn = f"Dashed: longest time of {best}. Not drawn: schemes {FAR:g} times as slow."
        note = f"Median and range of times. {drawn}"
        title, axis = f"Times over topologies: {_named(what)}", Axis("time", seconds)
        made.append(Intervals(title, list(near), list(near.values()), axis, limit, note))
    return made


SECTION = Declaration(17, page, answer=answer, figures=(charts,))
