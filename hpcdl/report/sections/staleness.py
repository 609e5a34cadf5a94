"""Staleness of gradients: updates between the reading of the parameters and the use of their gradient."""

from collections.abc import Sequence
from typing import Final

from hpcdl.analysis.run.record import Key, Record
from hpcdl.report.formats.cells import NONE, digits, percent
from hpcdl.report.formats.document import Section
from hpcdl.report.run.contents import EVIDENCE, Declaration, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, rows

SHOWN: Final = 4
"""Staleness values with one column each: 0 to 3."""
HEADER: Final = (
    *("method", "ranks", "workers", "gradients an update", "discarded", "mean", "expected", "max"),
    *(f"at {age}" for age in range(SHOWN)),
    f"at {SHOWN} or more",
)
NOTE: Final = (
    "Staleness of a gradient: updates that the parameters saw from when they were fetched for it until it was "
    "applied. Expected: the long-run mean if workers never wait and fetch with every push, which is "
    "(workers - 1) / gradients an update, and with overlap, where parameters are used a step after they were "
    "fetched, (2 workers - 1) / gradients an update. Shares are of the gradients applied within the measured "
    "span, the maximum is of the whole training. Discarded: share of the gradients that no update used."
)


def page(findings: Findings) -> Section:
    """Return one table per problem in which gradients were applied to newer parameters."""

    def cells(methods: Sequence[Method]) -> list[tuple[str, ...]]:
        table = []
        for row in sorted(rows(methods), key=lambda row: -(row.scale.median("staleness_mean") or 0.0)):
            scale, keys = row.scale, {_key(record) for record in row.scale.records}
            known = [stale.shares for record, stale in findings.staleness if _key(record) in keys]
            if not known:
                continue
            shares = [sum(each[age] for each in known if age < len(each)) / len(known) for age in range(SHOWN)]
            table.append(
                (
                    row.name,
                    str(scale.record.ranks),
                    str(scale.record.workers or NONE),
                    digits(scale.median("gradients_per_update")),
                    percent(scale.median("discarded_share"), 1),
                    *(digits(scale.median(name)) for name in ("staleness_mean", "staleness_expected")),
                    f"{scale.high('staleness_max') or 0:.0f}",
                    *(percent(share, 1) for share in (*shares, max(0.0, 1 - sum(shares)))),
                )
            )
        return table

    return per_setting(findings, "Staleness", HEADER, cells, NOTE, "highest mean first")


def _key(record: Record) -> Key:
    return (record.configuration(), record.ranks, record.seed)


SECTION = Declaration(100, page, rows=EVIDENCE)
