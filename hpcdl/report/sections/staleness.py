"""Staleness of gradients: updates between the reading of the parameters and the use of their gradient."""

from functools import partial
from typing import Final

from hpcdl.analysis.run.record import Key, Record
from hpcdl.report.formats.cells import percent
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.columns import METHOD, RANKS, median, stated
from hpcdl.report.run.declaration import EVIDENCE, Declaration, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Row, largest_first

SHOWN: Final = 4
"""Staleness values with one column each: 0 to 3."""
NOTE: Final = (
    "Staleness of a gradient: number of updates of the parameters between the fetch by its worker and the moment "
    "when it is applied. Expected: mean if workers never wait and fetch after every push, (workers - 1) / "
    "(gradients per update). With overlap parameters are one step older: (2 workers - 1) / (gradients per "
    "update). Shares count the gradients that were applied in the measured steps; max is the maximum of the whole "
    "training. Discarded: share of the gradients that no update used."
)


def page(findings: Findings) -> Section:
    """Return one table per problem in which gradients were applied to newer parameters."""
    shares = [(_key(record), stale.shares) for record, stale in findings.staleness]

    def at(row: Row, age: int) -> str:
        """Return the share of gradients of a staleness, or at least as many updates as columns, over launches."""
        keys = {*map(_key, row.scale.records)}
        launches = [each for key, each in shares if key in keys]
        below = [sum(each[age] for each in launches if age < len(each)) / len(launches) for age in range(SHOWN)]
        return percent(below[age] if age < SHOWN else max(0.0, 1 - sum(below)), 1)

    def share(age: int) -> Column[Row]:
        return Column(f"at {age}" + " or more" * (age == SHOWN), lambda row: at(row, age), importance="detail")

    columns: list[Column[Row]] = [
        METHOD,
        RANKS,
        stated(Record.workers),
        median(Record.gradients_per_update),
        Column("discarded", lambda row: percent(row.scale.median(Record.discarded_share), 1)),
        median(Record.staleness_mean, importance="answer"),
        median(Record.staleness_expected, importance="answer"),
        Column[Row]("max", lambda row: f"{row.scale.bounds(Record.staleness_max)[1] or 0:.0f}"),
        *map(share, range(SHOWN + 1)),
    ]
    stale_rows = partial(largest_first, quantity=Record.staleness_mean)
    return per_setting(findings, "Staleness", columns, stale_rows, NOTE, "highest mean first")


def _key(record: Record) -> Key:
    return (record.configuration(), record.ranks, record.seed)


SECTION = Declaration(100, page, rows=EVIDENCE)
