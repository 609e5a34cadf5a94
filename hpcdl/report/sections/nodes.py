"""Nodes: rate of each host's own work, and the slow hosts."""

from collections.abc import Collection, Sequence
from typing import Final

from hpcdl.analysis.network.links import HostTimes
from hpcdl.analysis.network.nodes import SLOW, Nodes, least_slowness, slow_hosts, undisturbed
from hpcdl.report.formats.cells import bounded, digits, listed, percent, plural, rate
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings

NOTE: Final = (
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


def page(findings: Findings) -> Section:
    """Return a row per host and work, the slowest host first, and the hosts that were slow only once."""
    tables = []
    for pattern in ("alone", "together"):
        cases = [nodes for nodes in findings.nodes if nodes.record.pattern == pattern]
        ordered = dict.fromkeys(name for nodes in cases for name in _slowest_first(nodes))
        rows = [(host, *(cell for nodes in cases for cell in _cells(nodes, host))) for host in ordered]
        header = ["host", *(work_name(nodes) + column for nodes in cases for column in ("", " speed"))]
        if cases:
            tables.append(Table(f"hosts {pattern}", tuple(header), rows, order="slowest host first"))
    return Section("Nodes", [NOTE] if tables else [], passing(findings), tables)


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


def sentences(findings: Findings, slow_links: Collection[str] | None = None) -> list[str]:
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


def answer(findings: Findings) -> Answer | None:
    """Return the slow hosts, or that none is slow, or why none can be named."""
    if not findings.nodes:
        return None
    basis = [record for record in findings.records if record.kind == "node"]
    if lines := sentences(findings):
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


NODES: Final = Declaration(9, page, answer=answer)
