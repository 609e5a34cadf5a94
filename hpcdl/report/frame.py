"""Rows of ``--json`` as a pandas frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from hpcdl.report.findings import findings
from hpcdl.report.json import cases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.trace.run import Run


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row per case and seed; an unknown value is missing."""
    return pd.DataFrame(cases(findings(runs)))
