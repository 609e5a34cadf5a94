"""A run as a document: the whole of it for a file, or its outcome for a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hpcdl.analysis import overhead as costs
from hpcdl.analysis.best import winners
from hpcdl.analysis.links import links as measured_links
from hpcdl.analysis.scaling import records
from hpcdl.report import collectives, overhead, training
from hpcdl.report import links as link_map
from hpcdl.report.card import card, method
from hpcdl.report.document import Document, Section
from hpcdl.report.seeds import Scale, Scheme, problems
from hpcdl.report.settings import settings
from hpcdl.report.verdict import verdict
from hpcdl.report.warnings import usable_cores, warnings
from hpcdl.report.winners import winners as winners_table

if TYPE_CHECKING:
    from hpcdl.trace.run import Run

LONG: Final = 40
"""Rows about scaling that a terminal can take."""


def document(run: Run) -> Document:
    """Everything that is known of ``run``; sections without data are left out."""
    found = records(run)
    groups = problems(found)
    setting = settings(groups)
    doubts = warnings(run, found)
    sections = [
        verdict(run, found, groups, setting, doubts),
        card(run, doubts),
        training.scaling(groups, setting),
        training.accuracy(groups, setting),
        training.split(groups, setting),
        collectives.collectives(found),
        collectives.pairwise(found),
        link_map.links(measured_links(run), usable_cores(run.environment)),
        overhead.fabric(costs.fabric(run)),
        overhead.tracing(costs.tracing(run), setting),
        winners_table(winners(run), setting),
        method(run, found),
    ]
    return Document(f"hpcdl: {run.path.name}", list(filter(None, sections)))


def summary(run: Run) -> Document:
    """Verdict, warnings, and each table with its main columns only.

    Accuracy is shown at the largest scales only, and so is scaling when it would be long.
    """
    found = records(run)
    groups = problems(found)
    setting = settings(groups)
    doubts = warnings(run, found)
    ends = [[Scheme(one.name, _ends(one)) for one in schemes] for schemes in groups]
    is_long = sum(len(scheme.scales) for schemes in groups for scheme in schemes) > LONG
    scaling = training.scaling(ends if is_long else groups, setting).brief(
        "nodes", "speedup", "input", "exposed 95 %"
    )
    sections = [
        verdict(run, found, groups, setting, doubts),
        Section("Warnings", points=list(doubts)),
        replace(scaling, title="Scaling: largest scale of each scheme") if is_long else scaling,
        training.accuracy(ends, setting).brief("final loss", "samples"),
        collectives.crossing(found),
        Section("Slow hosts and links", points=link_map.slow(measured_links(run), usable_cores(run.environment))),
        overhead.fabric(costs.fabric(run)).brief("95 %"),
        overhead.tracing(costs.tracing(run), setting).brief("95 %"),
    ]
    return Document(f"hpcdl: {run.path.name}", list(filter(None, sections)))


def _ends(scheme: Scheme) -> list[Scale]:
    return [scale for scale in scheme.scales if scale["ranks"] == 1 or scale is scheme.scales[-1]]
