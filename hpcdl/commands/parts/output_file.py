"""Write the files that options of commands name."""

from __future__ import annotations

import os
from pathlib import Path


def write_output(option: str, file: Path, text: str) -> None:
    """Write ``text`` to the ``file`` that ``option`` names, in UTF-8.

    A regular file is replaced at once, because a collector may read it at any moment. A device, a pipe or the
    target of a link is written to. Raises UsageError.
    """
    from hpcdl.suite import UsageError
    from hpcdl.trace.atomic_write import atomic_write

    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
        else:
            with atomic_write(target) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {file}: cannot be written: {error.strerror}") from None
