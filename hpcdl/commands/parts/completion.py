"""Completion of words in a shell, by argcomplete: suites, names to check, and names of cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def complete(action: argparse.Action, words: Callable[..., list[str]]) -> None:
    """Let a shell complete an argument by ``words``, one of the functions below."""
    action.completer = words  # type: ignore[attr-defined]


def suites_and_files(prefix: str, **_: object) -> list[str]:
    """Return the shipped suites, and the files and folders that begin with ``prefix``."""
    from argcomplete.completers import FilesCompleter

    from hpcdl.cases.keys.suite_tables import suites

    return [*suites(), *FilesCompleter()(prefix)]


def schemes_and_strategies(**_: object) -> list[str]:
    """Return the names of the aggregation schemes and of the training strategies."""
    from hpcdl import registry

    return [*registry.names("aggregation"), *registry.names("training")]


def cases(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names of the cases of the suite or the run that is on the command line."""
    from hpcdl import suite
    from hpcdl.analysis.run.pooling import runs_in
    from hpcdl.trace.schema import read

    given: dict[str, Any] = vars(parsed_args)
    source: Path = given.get("suite") or given.get("source") or given["run"]
    if source.is_dir() or source.suffix == ".h5":
        return [str(fields.get("case")) for fields in read(runs_in(source)[0], wanted=()).described]
    return [case.name for case in suite.load(source, check=False).cases]
