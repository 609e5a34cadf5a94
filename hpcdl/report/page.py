"""A run as a document: verdict, job, scaling, accuracy, split, operations, winners, method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.analysis.best import winners
from hpcdl.analysis.scaling import records
from hpcdl.report import collectives, tables
from hpcdl.report.card import card, method
from hpcdl.report.document import Document, Section
from hpcdl.report.warnings import failures, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.trace.run import Run


def document(run: Run) -> Document:
    """Everything that is known of ``run``; sections without data are left out."""
    found = records(run)
    doubts = warnings(run, found)
    sections = [
        _verdict(run, tables.verdicts(found), failures(found), doubts),
        card(run, doubts),
        tables.scaling(found),
        tables.accuracy(found),
        tables.split(found),
        collectives.collectives(found),
        collectives.overhead(found),
        tables.best(winners(run)),
        method(run, found),
    ]
    kept = [one for one in sections if one.paragraphs or one.points or one.tables or one.verbatim]
    return Document(f"hpcdl: {run.path.name}", kept)


def _verdict(
    run: Run, schemes: Sequence[tuple[bool | None, str]], failed: Sequence[str], doubts: Sequence[str]
) -> Section:
    word = "FAILED" if failed else "Fine" if run.complete and len(run.steps) else "INCOMPLETE"
    counts = [
        f"{len(failed)} failed" if failed else "nothing failed",
        "1 warning" if len(doubts) == 1 else f"{len(doubts)} warnings",
    ]
    if schemes:
        near = sum(good is True for good, _ in schemes)
        counts.insert(0, f"{near} of {len(schemes)} schemes near-linear to their largest scale")
    line = f"{word}: {', '.join(counts)}."
    return Section("Verdict", [line], [*(f"FAILED {one}" for one in failed), *(text for _, text in schemes)])
