"""Collectives on several topologies: how slow each scheme gets where messages share links."""

from collections.abc import Mapping
from statistics import median
from typing import Final

from hpcdl.registry import label
from hpcdl.report.formats.cells import NONE, digits, plural, seconds, volume
from hpcdl.report.formats.document import Axis, Intervals, Section, Table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings

TITLE: Final = "Contention"
LEAST: Final = 2
"""Topologies on which a collective was simulated, at least."""
FAR: Final = 10.0
"""Multiple of the best scheme's longest time beyond which a scheme is not drawn."""
NOTE: Final = (
    "Ratio: the longest time by the shortest, over these topologies. First is the best scheme in the worst case."
)

Operation = tuple[str | None, int | None, int, str | None]
"""Collective, bytes of the message, ranks and network."""

Times = dict[str, dict[str, float]]
"""By scheme and topology, seconds."""


def _collectives(findings: Findings) -> dict[Operation, Times]:
    """Return the times of each collective that was simulated on several topologies, by its description."""
    groups: dict[Operation, Times] = {}
    for record in findings.records:
        topology = record.settings.get("topology")
        if record.kind == "collective" and topology and record.time_p50_seconds:
            what = (record.collective, record.message_bytes, record.ranks, record.network)
            times = groups.setdefault(what, {}).setdefault(str(record.aggregation), {})
            times[label(topology)] = record.time_p50_seconds
    return {
        what: dict(sorted(schemes.items(), key=lambda scheme: max(scheme[1].values())))
        for what, schemes in groups.items()
        if len(next(iter(schemes.values()))) >= LEAST
    }


def _ratio(times: Mapping[str, float]) -> float:
    return max(times.values()) / min(times.values())


def page(findings: Findings) -> Section:
    """Return one table per collective, a column for each topology."""
    tables = []
    for what, schemes in _collectives(findings).items():
        topologies = list(dict.fromkeys(name for times in schemes.values() for name in times))
        rows = [
            (name, *(seconds(times.get(topology)) if topology in times else NONE for topology in topologies),
             digits(_ratio(times)))
            for name, times in schemes.items()
        ]  # fmt: skip
        tables.append(Table(_named(what), ("algorithm", *topologies, "ratio"), rows, 1, [NOTE]))
    return Section(TITLE, tables=tables)


def _named(what: Operation) -> str:
    collective, message, ranks, network = what
    return f"{collective}, {volume(message)}, {plural(ranks, 'rank')}, {network}"


def answer(findings: Findings) -> Answer | None:
    """Return the best scheme in the worst case, the one that topologies change most, and the fastest on each."""
    lines = []
    for what, schemes in _collectives(findings).items():
        best, most = next(iter(schemes)), max(schemes, key=lambda scheme: _ratio(schemes[scheme]))
        best_range, most_range = (
            " to ".join(seconds(bound(schemes[scheme].values())) for bound in (min, max))
            for scheme in (best, most)
        )
        depends = f"{most} depends most on the topology ({most_range})"
        lines.append(f"{_named(what)}: {best} is best in the worst case ({best_range}); {depends}.")
        for topology in schemes[best]:
            ranked = {scheme: times[topology] for scheme, times in schemes.items() if topology in times}
            lines.append(f"Fastest on {topology}: {min(ranked, key=lambda scheme: ranked[scheme])}.")
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
        note = f"Median, shortest and longest time. Dashed: longest of {best}; none of {FAR:g} times that or more."
        title, axis = f"Times over topologies: {_named(what)}", Axis("time", seconds)
        made.append(Intervals(title, list(near), list(near.values()), axis, limit, note))
    return made


SECTION = Declaration(17, page, answer=answer, figures=(charts,))
