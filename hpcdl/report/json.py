"""The document that ``--json`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcdl.analysis.scaling import records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.trace.run import Run


def render(runs: Sequence[Run]) -> str:
    """``{"schema": 1, "cases": [...]}``: SI units, null for what is unknown or does not apply."""
    cases = [record for run in runs for record in records(run)]
    return json.dumps({"schema": 1, "cases": cases}, indent=1, allow_nan=False) + "\n"
