"""Settings: shared by all problems, different between them, and each method's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.analysis.run.record_fields import METHOD
from hpcdl.report.formats.cells import NONE
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.method_names import Names, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return the shared settings, a row per problem, and a row per method where strategies are compared."""
    settings = found.settings
    own = list(settings.own.values())
    tables = [Table("", ("setting", "differs in"), own, 2)] if own else []
    tables += _methods([record for record in found.records if (record.get("kind") or "train") == "train"])
    return Section("Settings", [f"{settings.common}."] if settings.common else [], tables=tables)


def _methods(trained: Sequence[Record]) -> list[Table]:
    """Return a table of the methods if several strategies are compared; shared columns are left out."""
    names = Names(trained)
    shown = dict.fromkeys(
        (names(record), *(text_of(record, name) or NONE for name in METHOD)) for record in trained
    )
    if len({record.get("training") for record in trained}) < 2:
        return []
    header = ("method", *(name.replace("_", " ") for name in METHOD))
    alike = [name for name, cells in zip(header, zip(*shown, strict=True), strict=True) if len(set(cells)) == 1]
    return [Table("", header, list(shown), len(header)).without(*alike)]


SECTION = Declaration(900, page)
