"""Hosts and links: rate of each host's own work and of each link, the slow ones, and messages of pairs."""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.network.links import CONSPICUOUS, HostTimes, Links
from hpcdl.analysis.network.nodes import SLOW, Nodes, least_slowness, slow_hosts, undisturbed
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.report.formats.cells import (
    NONE,
    bounded,
    digits,
    listed,
    percent,
    plural,
    rate,
    seconds,
    spread,
    volume,
)
from hpcdl.report.formats.document import Axis, HeatMap, Section
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run import link_counters
from hpcdl.report.run.declaration import EVIDENCE, Answer, Declaration, bounds, value
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import scheme_name
from hpcdl.report.run.operations import CHECKED, grouped
from hpcdl.report.sections.collectives import OF_EXPECTED
from hpcdl.trace.quantities import EXCHANGES

HOSTS_NOTE: Final = (
    "Rate: of the median time over repetitions (or launches) of the work, by a host's slowest rank, times its "
    "ranks; bytes of copies and of the triad, FLOP of the others. Time in which other processes held a rank's "
    "core does not count. Speed: rate / the median of the other hosts. A host is slow if its speed over all "
    "works is below 90 %, or below 75 % in one of them, and the 95 % interval for all hosts excludes 100 %. "
    "Together: hosts work at the same time, which names none if emulated hosts share cores."
)
DECISIVE: Final = 0.5
"""Share of the others' speed: if slower hosts may not be named, an answer does not say that none is slow."""


def work_name(nodes: Nodes) -> str:
    """Return the work in words: matrix product."""
    return str(nodes.record.collective).replace("_", " ")


def nodes_page(findings: Findings) -> Section:
    """Return a row per host and work, the slowest host first, and the hosts that were slow only once."""
    tables = []
    for pattern in ("alone", "together"):
        cases = [nodes for nodes in findings.nodes if nodes.record.pattern == pattern]
        ordered = dict.fromkeys(name for nodes in cases for name in _slowest_first(nodes))
        rows = [(host, *(cell for nodes in cases for cell in _cells(nodes, host))) for host in ordered]
        header = ["host", *(work_name(nodes) + column for nodes in cases for column in ("", " speed"))]
        if cases:
            tables.append(Table(f"hosts {pattern}", tuple(header), rows, order="slowest host first"))
    return Section("Nodes", [HOSTS_NOTE] if tables else [], passing(findings), tables)


def _slowest_first(nodes: Nodes) -> list[str]:
    shares = dict(zip(nodes.names, nodes.shares(), strict=False))
    return sorted(shares, key=lambda name: shares[name].value) or nodes.names


def _cells(nodes: Nodes, host: str) -> tuple[str, str]:
    if host not in nodes.names:
        return "", ""
    number, record = nodes.names.index(host), nodes.record
    ranks = list(nodes.hosts).count(host)
    amount = (record.work_flop or record.message_bytes or 0) * ranks / nodes.seconds[number]
    shown = f"{digits(amount / 1e9)} GFLOP/s" if record.work_flop else rate(amount)
    shares = nodes.shares()
    return shown, percent(shares[number].value) if shares else ""


def counted(findings: Findings) -> list[Nodes]:
    """Return the cases that can name a host: those of hosts with own cores, disturbed ones if confirmed."""
    known = {record.case: record for record in findings.records}
    return [
        nodes
        for nodes in findings.nodes
        if not (nodes.record.pattern == "together" and known[nodes.record.case].oversubscribed)
        and (nodes.confirmed or not nodes.disturbed)
    ]


def slow_host_sentences(findings: Findings, slow_links: Collection[str] | None = None) -> list[str]:
    """Return a sentence per slow host; ``slow_links``: hosts whose links are slow, None if they are not judged."""
    lines = []
    for host, (share, cases) in slow_hosts(counted(findings)).items():
        works = listed(list(dict.fromkeys(map(work_name, cases))))
        line = f"{host} computes at {bounded(*share, percent)} of the other hosts' speed ({works})"
        is_node_alone = slow_links is not None and host not in slow_links
        lines.append(f"{line}{'; its links are not slow' if is_node_alone else ''}.")
    return lines


def passing(findings: Findings) -> list[str]:
    """Return a sentence for the hosts and pairs that were slow at first, but not when they were measured again."""
    hosts = {host for nodes in counted(findings) for host in nodes.passed}
    pairs = {pair for links in findings.links for pair in links.passed}
    names = [f"{len(hosts)} of the hosts" if len(hosts) > 3 else listed(sorted(hosts))] if hosts else []
    names += [f"{plural(len(pairs), 'pair')} of ranks"] if pairs else []
    sentence = f"Slow once, but not when measured again a second later, and so no finding: {listed(names)}."
    return [sentence] if names else []


def nodes_answer(findings: Findings) -> Answer | None:
    """Return the slow hosts, or that none is slow, or why none can be named."""
    if not findings.nodes:
        return None
    basis = [record for record in findings.records if record.kind == "node"]
    if lines := slow_host_sentences(findings):
        return Answer(lines[0], lines[1:], basis)
    cases = undisturbed(counted(findings))
    shares = [(*entry, nodes) for nodes in cases for entry in zip(nodes.shares(), nodes.names, strict=False)]
    if not shares:
        reason = "at least three hosts are needed, with cores of their own and no other processes"
        return Answer(f"Not decided: no host can be named as slow, because {reason}.", basis=basis)
    share, host, nodes = min(shares, key=lambda entry: entry[0].value)
    slowest = f"the slowest host, {host}, has {bounded(*share, percent)} of the other hosts' speed"
    least = least_slowness(cases)
    return Answer(
        none_slow("host's own work", cases, least, least == SLOW, f"{slowest} ({work_name(nodes)})"), basis=basis
    )


def none_slow(what: str, cases: Sequence[HostTimes], least: float, is_exact: bool, slowest: str) -> str:
    """Return that none is slow, with the slowness that would have been seen, or why this is not decided.

    ``least``: share of the others' speed below which each would have been named, ``is_exact`` as without noise.
    """
    share = f"{percent(least)} of the others' speed"
    only = f"only one below {share}" if least else "none"
    if cases[0].disturbed:
        return f"Not decided: other load disturbed each case; {only} would have been named."
    if least < DECISIVE:
        return f"Not decided: repetitions are few or vary too much; {only} would have been named."
    if is_exact:
        return f"No {what} is slow: {slowest}; one below {share} would have been named."
    return f"No {what} is below {share}, and noise hides one above it: {slowest}."


NODES: Final = Declaration(9, nodes_page, answer=nodes_answer, name="nodes")


def _of_link(record: Record) -> str:
    """Return the share of the link's rate; a dash unless ranks are alone on their hosts."""
    alone = record.ranks == record.nodes
    return percent(record.algbw_bytes_per_second, record.link_bytes_per_second) if alone else NONE


EXCHANGE: Final[tuple[Column[Record], ...]] = (
    value(Record.message_bytes),
    Column("program", scheme_name),
    value(Record.time_p50_seconds, importance="answer"),
    bounds(Record.time_p50_seconds, importance="answer"),
    value(Record.time_p99_seconds),
    value(Record.time_max_seconds, importance="detail"),
    value(Record.algbw_bytes_per_second),
    Column("algbw / link", _of_link, importance="answer"),
    OF_EXPECTED,
    Column("correct", lambda record: CHECKED[record.correct]),
)


def pairwise_page(findings: Findings) -> Section:
    """Return one table per group of comparable exchanges."""
    exchanges = [record for record in findings.records if record.pattern in {None, "pair", *EXCHANGES}]
    groups = grouped(exchanges, "pairwise")
    tables = [table(EXCHANGE, rows, group.title, left=2) for group, rows in groups.items()]
    return Section("Pairwise exchange", tables=tables, per="exchange")


PAIRWISE: Final = Declaration(120, pairwise_page, compares=True)

MAX_RANKS: Final = 48
"""Ranks of a map, at most; more share rows and columns."""
SMALL: Final = 4096
"""Bytes of messages, below which a map shows times instead of rates."""


def link_map(findings: Findings) -> list[HeatMap]:
    """Return one map per case in which all pairs exchanged."""
    mapped = (links for links in findings.links if links.record.pattern == "all_pairs")
    return [_chart(links) for links in mapped if np.isfinite(links.seconds).any()]


def _chart(links: Links) -> HeatMap:
    size = links.record.message_bytes or 0
    small = size < SMALL
    values = links.seconds if small else links.rates
    width = -(-len(values) // MAX_RANKS)
    begins = range(0, len(values), width)
    labels = [f"{rank} {host}" if len(links.names) > 1 else str(rank) for rank, host in enumerate(links.hosts)]
    note = "Median over repetitions of an exchange, both directions at once."
    if width > 1:
        worst = np.fmax if small else np.fmin
        values = np.asarray(worst.reduceat(worst.reduceat(values, begins, 0), begins, 1), np.float64)
        labels = [f"{begin}-{min(begin + width, len(links.seconds)) - 1}" for begin in begins]
        note += f" Each square is the slowest of {width} x {width} links."
    axis = Axis("time of an exchange", seconds) if small else Axis("rate in each direction", rate)
    title = f"Links: {len(links.seconds)} ranks, {volume(size)}"
    return HeatMap(title, labels, "rank", values, axis, note)


WIDEST: Final = 16
"""Ranks, at most, of a map that fits a page."""

NOTE: Final = (
    "Times are medians over the repetitions of an exchange in both directions at once, at its slower rank; with "
    "several launches, medians over the undisturbed launches. A host is slow if the median rate of its links is "
    "below 85 % of the other hosts' rate and none of its links reaches 95 %. A link is slow if its rate is below "
    "85 % of the median rate and neither of its hosts is slow. The 95 % interval (over repetitions or launches, "
    "for all hosts or links together) must exclude 1. No host or link is named among fewer than three hosts, if "
    "ranks outnumber cores, or if the case was disturbed and slow pairs were not measured again (confirm = 2)."
)


def page(findings: Findings) -> Section:
    """Return a map per case, of many ranks each one's least, median and most, and the range over its pairs."""
    tables = []
    for links in findings.links:
        is_small = (links.record.message_bytes or 0) < SMALL
        shown, values = (seconds, links.seconds) if is_small else (rate, links.rates)
        header = ("rank", *map(str, range(len(values))))
        if len(values) > WIDEST:
            header, values = ("rank", "least", "median", "most"), np.nanquantile(values, [0, 0.5, 1], axis=1).T
        rows = [(str(rank), *map(shown, row)) for rank, row in enumerate(values.tolist())]
        tables.append(Table(_title(links), header, rows))
    points = [_range(links, findings.usable_cores) for links in findings.links if len(links.seconds) > 2]
    return Section("Hosts and links", [NOTE] if tables else [], points, tables)


def _title(links: Links) -> str:
    pattern = str(links.record.pattern).replace("_", " ")
    return f"{pattern}, {len(links.seconds)} ranks, {volume(links.record.message_bytes)}"


def _range(links: Links, cores: float | None) -> str:
    hosts = [f" on {host}" if len(links.names) > 1 else "" for host in links.hosts or links.seconds]
    names = [f"rank {rank}{host}" for rank, host in enumerate(hosts)]
    pairs = [f"{names[one]} with {names[other]} in {seconds(time)}" for one, other, time in links.extremes()]
    ends = f"fastest exchange {pairs[0]}, slowest {pairs[1]}" if pairs else "no times"
    line = f"{_title(links)}: {ends}"
    if obstacle := _obstacle(links, cores):
        return f"{line}; {obstacle}, so that no slow host can be named."
    for host, share in links.shares()[:1]:
        line += f"; slowest host {links.names[host]}, at {percent(share.value)} of the other hosts' speed"
    return f"{line}."


def _obstacle(links: Links, cores: float | None) -> str:
    # one rank shares no core, even if a control group allows it less than one
    if cores is not None and len(links.seconds) > max(1.0, cores) * max(1, len(links.names)):
        return "ranks share cores"
    if links.disturbed and not links.confirmed:
        return f"the case was disturbed: {links.disturbed}; confirm = 2 would measure slow pairs again"
    return ""


def answer(findings: Findings) -> Answer | None:
    """Return the slow hosts, those that compute slowly first, and the slow links.

    Otherwise return that none is slow, or why none can be named.
    """
    if not findings.links:
        return None
    clear = [links for links in findings.links if not _obstacle(links, findings.usable_cores)]
    basis = [record for record in findings.records if record.kind == "pairwise"]
    hosts = group_by_key((links.names[host], share) for links in clear for host, share in links.slow_hosts())
    cases = undisturbed([links for links in clear if links.shares()])
    least = min((links.least_slowness() for links in cases), default=0.0)
    can_clear = least >= DECISIVE and not cases[0].disturbed
    lines = slow_host_sentences(findings, hosts if can_clear else None)
    lines += [
        f"The link of {name} runs at {_speed(*shares)}."
        for name, shares in sorted(hosts.items(), key=lambda item: item[1][0].value)
    ]
    lines += [
        f"The link between {links.names[i]} and {links.names[j]} runs at {percent(part)} of the median link's "
        "speed."
        for links in clear
        for i, j, part in links.slow_links()
    ]
    if lines:
        return Answer(lines[0], lines[1:], basis)
    if not clear:
        reason = " and ".join(dict.fromkeys(_obstacle(links, findings.usable_cores) for links in findings.links))
        return Answer(f"Not decided: no host can be named as slow, because {reason}.", basis=basis)
    if not cases:
        return Answer("Not decided: a slow host can be named only among at least three hosts.", basis=basis)
    share, name = min((share, links.names[host]) for links in cases for host, share in links.shares()[:1])
    slowest = f"the slowest host, {name}, runs at {_speed(share)}"
    return Answer(none_slow("host or link", cases, least, least == CONSPICUOUS, slowest), basis=basis)


def _speed(first: Interval, *others: Interval) -> str:
    """Return the share of a host's links in one case, and the range in all others."""
    range_of = spread((other.value for other in others), percent)
    seen = f", and at {range_of} in {plural(len(others), 'other case')}" if others else ""
    return f"{bounded(*first, percent)} of the other hosts' speed{seen}"


LINKS: Final = Declaration(10, page, answer=answer, figures=(link_map,))
COUNTERS: Final = Declaration(905, lambda findings: link_counters.section(findings.run.environment), rows=EVIDENCE)
