"""What a user states about logs of other tools that the logs leave open: ``--log KEY=VALUE``."""

import argparse
from typing import Final

from hpcdl.registry import nearest

FACTS: Final = ("ranks", "nodes", "library", "collective", "algorithm", "placement")
_stated: Final = dict[str, str]()


def forget() -> None:
    """Forget all facts: another command begins."""
    _stated.clear()


def state(text: str) -> str:
    """State a fact for all logs that are read from now on. Raises argparse.ArgumentTypeError."""
    name, mark, value = text.partition("=")
    if name not in FACTS:
        raise argparse.ArgumentTypeError(f"unknown {name!r}{nearest(name, FACTS)}")
    if not (mark and value) or (name in {"ranks", "nodes"} and not (value.isdecimal() and int(value))):
        raise argparse.ArgumentTypeError(f"{text}: must be {name}=VALUE, such as ranks=4 or algorithm=ring")
    _stated[name] = value
    return text


def stated(name: str, known: object = "") -> str:
    """Return what a log states, else a user; empty if neither does. Raises ValueError if they differ."""
    if known and _stated.get(name, str(known)) != str(known):
        raise ValueError(f"--log {name}={_stated[name]}: the log states {known}")
    return str(known or _stated.get(name, ""))
