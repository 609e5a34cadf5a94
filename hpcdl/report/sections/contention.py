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
from hpcdl.report.run.fastest import collective_name
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import capital, link_title, title_of

TITLE: Final = "Contention"
LEAST: Final = 2
"""Topologies on which a collective was simulated, at least."""
SLOW: Final = 2.0
"""Multiple of the fastest scheme's time from which on a scheme is slow."""
FAR: Final = 10.0
"""Multiple of the best scheme's longest time beyond which a scheme is not drawn."""
NOTE: Final = "Worst: largest value, over the topologies, of the scheme's time / the time of the fastest scheme."

Operation = tuple[str | None, int | None, int, str | None]
"""Collective, bytes of the message, ranks and network."""

Times = dict[str, dict[str, float]]
"""By scheme and topology, seconds."""


def _collectives(findings: Findings) -> dict[Operation, Times]:
    """Return the times of each collective that was simulated on several topologies, the best worst case first."""
    groups: dict[Operation, Times] = {}
    for record in findings.records:
        topology = record.settings.get("topology")
        if record.kind == "collective" and topology and record.time_p50_seconds:
            what = (record.collective, record.message_bytes, record.ranks, record.network)
            times = groups.setdefault(what, {}).setdefault(str(record.aggregation), {})
            times[label(topology)] = record.time_p50_seconds
    return {
        what: dict(sorted(schemes.items(), key=lambda scheme: _worst(scheme[1], _fastest(schemes))))
        for what, schemes in groups.items()
        if len(_fastest(schemes)) >= LEAST
    }


def _fastest(schemes: Times) -> dict[str, float]:
    """Return the time of the fastest scheme on each topology (s)."""
    topologies = dict.fromkeys(name for times in schemes.values() for name in times)
    return {name: min(times.get(name, math.inf) for times in schemes.values()) for name in topologies}


def _worst(times: Mapping[str, float], fastest: Mapping[str, float]) -> float:
    """Return the largest quotient of a scheme's time / the fastest; infinity if it lacks a topology."""
    return max(times.get(name, math.inf) / time for name, time in fastest.items())


def page(findings: Findings) -> Section:
    """Return one table per collective, a column for each topology."""
    tables = []
    for what, schemes in _collectives(findings).items():
        fastest = _fastest(schemes)
        rows = [
            (name, *(seconds(times.get(topology)) for topology in fastest), digits(_worst(times, fastest)))
            for name, times in schemes.items()
        ]
        tables.append(Table(_named(what), ("algorithm", *fastest, "worst"), rows, 1, [NOTE]))
    return Section(TITLE, tables=tables)


def _named(what: Operation) -> str:
    collective, message, ranks, network = what
    return f"{collective}, {volume(message)}, {plural(ranks, 'rank')}, {network}"


def answer(findings: Findings) -> Answer | None:
    """Return the scheme that is least behind the fastest of each topology, and the fastest on each."""
    lines = []
    for (collective, message, ranks, network), schemes in _collectives(findings).items():
        fastest = _fastest(schemes)
        best, times = next(iter(schemes.items()))
        worst = _worst(times, fastest)
        verdict = f"{title_of(best)} is never slow: on every topology it"
        if worst > SLOW:
            verdict = f"no scheme is always fast: {title_of(best)}, the best,"
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
    for what, schemes in _collectives(findings).items():
        best, limit = next((name, max(times.values())) for name, times in schemes.items())
        known = {name: [*times.values()] for name, times in schemes.items()}
        near = {
            name: (median(spans), min(spans), max(spans))
            for name, spans in known.items()
            if max(spans) < FAR * limit
        }
        note = (
            f"Median and range of times. Dashed: longest time of {best}. Not drawn: schemes {FAR:g} times as slow."
        )
        title, axis = f"Times over topologies: {_named(what)}", Axis("time", seconds)
        made.append(Intervals(title, list(near), list(near.values()), axis, limit, note))
    return made


SECTION = Declaration(17, page, answer=answer, figures=(charts,))
