"""A parser of command lines that says what is wrong in one line, with the nearest valid name."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from hpcdl.exit_codes import USAGE
from hpcdl.launch.guard import is_first
from hpcdl.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence


class Arguments(argparse.ArgumentParser):
    """Like its parent, but for what it says of wrong usage: no page of usage, and once for all ranks of a job."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        if is_first(os.environ):
            print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        self.exit(USAGE)

    def check_options(self, words: Sequence[str]) -> None:
        """Refuse the first long option up to ``--`` that there is not, rather than what is missing without it."""
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            known = any(option.startswith(name) for option in self._option_string_actions)
            if name.startswith("--") and " " not in name and not known:
                self.refuse(name)

    def refuse(self, word: str) -> NoReturn:
        """Print that no option or argument takes ``word``, and exit."""
        if word.startswith("-"):
            self.error(f"{word}: unknown option{nearest(word, self._option_string_actions)}")
        self.error(f"{word}: one argument too many")


def chosen(word: str, names: Sequence[str]) -> str:
    """``word``, if it is one of ``names``. Raises argparse.ArgumentTypeError."""
    if word not in names:
        raise argparse.ArgumentTypeError(f"unknown {word!r}{nearest(word, names)}")
    return word
