"""What was trained, in words: once for what all cases share, and a letter for each way in which they differ."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.fields import Key, planned_steps, problem
from hpcdl.report.quantities import digits, plural
from hpcdl.report.seeds import names_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.report.seeds import Method

USUAL: Final = "trace=events"
"""The default, not worth a word unless cases differ in it."""
ABSENT: Final = {
    "straggler": "no straggler",
    "failure": "no failure",
    "shares": "equal shares",
    "simulated": "measured",
}
"""By what a part of the configuration begins with, what is said of a case without it beside others with it."""


@dataclass(frozen=True)
class Settings:
    """The problems of a report."""

    common: str
    """What all of them share."""
    own: Mapping[Key, tuple[str, str]]
    """By problem: its letter, and what it shares with no other or only with some. Empty if there is only one."""

    def letter(self, fields: Mapping[str, Any]) -> str:
        """``A``, ``B``, ... for the problem of a record; empty if there is only one."""
        return self.own.get(problem(fields), ("", ""))[0]

    def title(self, fields: Mapping[str, Any]) -> str:
        """``A: what is its own``; empty if there is only one."""
        return ": ".join(filter(None, self.own.get(problem(fields), ())))


def settings(groups: Sequence[Sequence[Method]]) -> Settings:
    """Compare the problems of ``groups``, as :func:`hpcdl.report.seeds.problems` gives them, word by word."""
    words = {problem(methods[0].scales[0].records[0]): _words(methods) for methods in groups}
    every = list(words.values())
    names = list(dict.fromkeys(name for one in every for name in one))
    shared = [name for name in names if len({one.get(name) for one in every}) == 1]
    common = [every[0][name] for name in shared if name != "suite" and every[0][name] != USUAL]
    absent = {name: word for name, word in ABSENT.items() if name in names and name not in shared}
    own = {
        key: (
            ascii_uppercase[number] if number < len(ascii_uppercase) else str(number + 1),
            ", ".join(word for name, word in {**absent, **one}.items() if name not in shared),
        )
        for number, (key, one) in enumerate(words.items())
    }
    return Settings(", ".join(common), own if len(own) > 1 else {})


def _words(methods: Sequence[Method]) -> dict[str, str]:
    """By what it is about, each part that is known of a problem, and of what all methods share."""
    fields = methods[0].scales[0].records[0]
    batch = {
        "strong": f"strong scaling, global batch {fields.get('global_batch')}",
        "weak": f"weak scaling, {_per_rank(fields)} images per rank",
    }.get(fields.get("scaling") or "", "scaling not stated")
    epochs, target = (fields.get(name) for name in ("epochs", "target_accuracy"))
    said = {
        "suite": f"suite {fields.get('suite')}",
        "task": f"{fields.get('model') or 'unnamed model'} on {fields.get('dataset') or 'unnamed data'}",
        "arithmetic": " ".join(str(fields[name]) for name in ("backend", "dtype") if fields.get(name)),
        **names_of(methods).common,
        "threads": plural(fields.get("threads_per_rank"), "thread", " per rank"),
        "batch": batch,
        "length": plural(epochs, "epoch") or plural(planned_steps(fields), "step"),
        "target": "" if target is None else f"target accuracy {digits(target)}",
        **{_subject(part): part for part in str(fields.get("configuration") or "").split(", ")},
    }
    return {name: word for name, word in said.items() if word}


def _subject(part: str) -> str:
    """What a part of the configuration is about: ``trace`` in ``trace=steps``, ``straggler``."""
    first = part.partition(" ")[0]
    return first if first in ABSENT else part.partition("=")[0]


def _per_rank(fields: Mapping[str, Any]) -> Any:
    whole = fields.get("global_batch")
    return fields.get("batch_per_rank") or ("equal" if whole is None else whole // fields["ranks"])
