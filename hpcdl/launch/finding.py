"""Finding of a check of the machine."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """Result of one check."""

    verdict: Literal["ok", "unknown", "warning", "FAILED"]
    subject: str
    detail: str
    advice: str = ""
    """Advice; empty if the verdict is ``ok``."""
