"""A run as a document: the whole of it for a file, or its outcome for a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hpcdl.analysis import overhead as costs
from hpcdl.analysis.best import fields_of, winners
from hpcdl.analysis.fitted import beside
from hpcdl.analysis.launches import launches
from hpcdl.analysis.links import links as measured_links
from hpcdl.analysis.messages import speeds
from hpcdl.analysis.scaling import records
from hpcdl.analysis.staleness import staleness
from hpcdl.analysis.stragglers import slowed
from hpcdl.report import collectives, consistency, overhead, predictions, training
from hpcdl.report import links as link_map
from hpcdl.report.card import card, method
from hpcdl.report.document import Document, Section
from hpcdl.report.seeds import Method, Scale, problems
from hpcdl.report.settings import settings
from hpcdl.report.stragglers import stragglers
from hpcdl.report.verdict import verdict
from hpcdl.report.warnings import crowded, usable_cores, warnings
from hpcdl.report.winners import over_time
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
    doubts, shared = warnings(run, found), crowded(run, found)
    best = winners(run)
    ages = [(one.fields, age) for one in launches(run) if (age := staleness(one))]
    sections = [
        verdict(run, found, groups, setting, best, doubts, shared),
        winners_table(best, setting, shared),
        card(run, doubts),
        training.scaling(groups, setting),
        training.accuracy(groups, setting),
        over_time(fields_of(run), setting),
        training.split(groups, setting),
        consistency.memory(groups, setting),
        consistency.staleness(groups, ages, setting),
        stragglers(slowed(run)),
        collectives.collectives(found),
        collectives.pairwise(found),
        predictions.beside(beside(run, found)),
        link_map.links(measured_links(run), usable_cores(run.environment), speeds(run)),
        overhead.fabric(costs.fabric(run)),
        overhead.tracing(costs.tracing(run), setting),
        method(run, found),
    ]
    return Document(_title(run), list(filter(None, sections)))


def summary(run: Run) -> Document:
    """Verdict, warnings, and each table with its main columns only.

    Accuracy is shown at the largest scales only, and so is scaling when it would be long.
    """
    found = records(run)
    groups = problems(found)
    setting = settings(groups)
    doubts, shared = warnings(run, found), crowded(run, found)
    ends = [[Method(one.name, _ends(one)) for one in methods] for methods in groups]
    is_long = sum(len(one.scales) for methods in groups for one in methods) > LONG
    scaling = training.scaling(ends if is_long else groups, setting).brief(
        "nodes", "speedup", "input", "exposed 95 %"
    )
    cores, mapped = usable_cores(run.environment), measured_links(run)
    exchanged = collectives.pairwise(found).brief("95 %", "max")
    sections = [
        verdict(run, found, groups, setting, winners(run), doubts, shared),
        Section("Warnings", points=list(doubts)),
        replace(scaling, title="Scaling: largest scale of each method") if is_long else scaling,
        training.accuracy(ends, setting).brief("final loss", "samples"),
        collectives.crossing(found),
        replace(exchanged, points=link_map.range_of(mapped, cores)),
        Section("Slow hosts and links", points=link_map.slow(mapped, cores, speeds(run))),
        overhead.fabric(costs.fabric(run)).brief("95 %"),
        overhead.tracing(costs.tracing(run), setting).brief("95 %"),
    ]
    return Document(_title(run), list(filter(None, sections)))


def _title(run: Run) -> str:
    """The run's name, and how many launches it has if they are pooled."""
    launches = len({fields.get("launch") for fields in run.described})
    return f"hpcdl: {run.path.name}" + (f", {launches} launches" if launches > 1 else "")


def _ends(method: Method) -> list[Scale]:
    return [scale for scale in method.scales if scale["ranks"] == 1 or scale is method.scales[-1]]
