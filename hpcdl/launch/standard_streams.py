"""Preparation of the standard streams, so that writing never fails."""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Replace closed standard streams by the null device, and escape characters that the encoding lacks.

    Otherwise a report could be lost in a locale without Greek letters, and a file could get the number of a
    stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
