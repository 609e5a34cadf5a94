"""The document that ``--json`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcdl.analysis.fitted import beside
from hpcdl.analysis.scaling import records
from hpcdl.report.predictions import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.trace.run import Run


def render(runs: Sequence[Run]) -> str:
    """``{"schema": 1, "cases": [...], "networks": [...]}``: SI units, null for what is unknown or does not apply.

    ``networks``: what was fitted to the collectives and exchanges of each run with enough of them; it is where
    their ``predicted_seconds`` are from.
    """
    cases: list[Record] = []
    networks = []
    for run in runs:
        measured = records(run)
        found = beside(run, measured)
        cases += found.records if found else measured
        if found:
            networks.append({"run": run.path.name, **described(found.fitted.network, found.fitted)})
    return json.dumps({"schema": 1, "cases": cases, "networks": networks}, indent=1, allow_nan=False) + "\n"
