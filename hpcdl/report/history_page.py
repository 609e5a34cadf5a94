"""Page of an archive's history with figures: ``hpcdl history DIR -o history.html``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.report import history as text
from hpcdl.report.document import Document, Section, Table
from hpcdl.report.figures import history as figures
from hpcdl.report.formatting import NONE, seconds
from hpcdl.report.html import Source, headed, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.calibration import Calibration
    from hpcdl.analysis.verdict_over_time import SuiteVerdict


def render(found: Sequence[SuiteVerdict], calibrations: Mapping[str, Calibration]) -> str:
    """Return the page; several suites follow each other."""
    sources = [_source(one, calibrations.get(one.history.suite)) for one in found]
    none = Section("Verdict", ["TOO FEW RUNS: none."])
    return written(sources or [Source(Document("hpcdl: history", [none]), [(none, [])], failed=False)])


def _source(found: SuiteVerdict, calibration: Calibration | None) -> Source:
    document = text.page(found, calibration)
    verdict, *others = document.sections
    contents = [
        (headed(verdict), figures.of_all(found)),
        (Section("Measures that changed"), figures.of_changed(found)),
        *((one, []) for one in others),
        (Section("Measures without a change"), figures.of_others(found)),
        (Section("All measures", tables=[_table(found)]), []),
    ]
    return Source(
        document, [(one, charts) for one, charts in contents if one or charts], failed=found.verdict == "regressed"
    )


def _table(found: SuiteVerdict) -> Table:
    """Return one row per series: its runs, its newest time and its level since the last change."""
    history = found.history
    firsts: dict[int, list[int]] = {}
    for one in (one for event in found.findings.events for one in event.changes):
        firsts.setdefault(one.series, []).append(one.first)
    rows = []
    for row, values in enumerate(history.seconds):
        cuts = firsts.get(row, [])
        level = float(np.nanmedian(values[max(cuts, default=0) :]))
        newest = float(values[-1])
        known = np.isfinite(newest)
        rows.append(
            (
                text.label(history, row),
                str(int(np.isfinite(values).sum())),
                seconds(newest) if known else NONE,
                text.signed(newest / level) if known else NONE,
                seconds(level),
                str(len(cuts)) if cuts else NONE,
                text.day(history.jobs[max(cuts)]) if cuts else NONE,
            )
        )
    header = ("measure", "runs", "newest", "against level", "level", "changes", "last change")
    notes = ["Level: the median since the last change. Newest: a dash if the newest run lacks the measure."]
    return Table("", header, rows, notes=notes)
