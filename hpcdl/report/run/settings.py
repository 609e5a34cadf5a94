"""Settings of trainings in words: once those that all cases share, and a name for each combination of others."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.run.record_fields import Key, planned_steps, problem
from hpcdl.analysis.run.record_fields import words as conditions_in_words
from hpcdl.report.formats.cells import digits, plural
from hpcdl.report.run.grouping import names_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.report.run.grouping import Method


ABSENT: Final = {
    "straggler": "no straggler",
    "failure": "no failure",
    "shares": "equal shares",
    "simulated": "measured",
    "trace": "trace=events",
}
"""By condition, the words for a case without it if other cases have it."""


@dataclass(frozen=True)
class Settings:
    """The problems of a report."""

    common: str
    """Settings that all problems share."""
    own: Mapping[Key, tuple[str, str]]
    """Name and further settings of each problem. Empty if there is only one."""

    def name(self, fields: Mapping[str, Any]) -> str:
        """Return the network of a record's problem; ``A``, ``B``, ... where networks recur; empty if alone."""
        return self.own.get(problem(fields), ("", ""))[0]

    def title(self, fields: Mapping[str, Any]) -> str:
        """Return name and further settings; empty if there is only one problem."""
        return ": ".join(filter(None, self.own.get(problem(fields), ())))


def settings(groups: Sequence[Sequence[Method]]) -> Settings:
    """Compare the problems of ``groups`` (of :func:`~hpcdl.report.run.grouping.problems`) word by word."""
    words = {problem(methods[0].scales[0].records[0]): _words(methods) for methods in groups}
    every = list(words.values())
    names = list(dict.fromkeys(name for named in every for name in named))
    shared = [name for name in names if len({named.get(name) for named in every}) == 1]
    common = [every[0][name] for name in shared if name != "suite"]
    absent = {name: word for name, word in ABSENT.items() if name in names and name not in shared}
    firsts = [methods[0].scales[0].records[0] for methods in groups]
    own_names = [_network(fields) for fields in firsts]
    if len(set(own_names)) < len(own_names) or "" in own_names:
        own_names = [*ascii_uppercase, *map(str, range(len(ascii_uppercase) + 1, len(groups) + 1))]
    own = {
        key: (own_name, ", ".join(word for name, word in {**absent, **named}.items() if name not in shared))
        for (key, named), own_name in zip(words.items(), own_names, strict=False)
    }
    return Settings(", ".join(common), own if len(own) > 1 else {})


def _network(fields: Mapping[str, Any]) -> str:
    """Return the network that is trained, and whether it is simulated or replayed."""
    how = "simulated" if fields.get("network") else "replayed" if fields.get("kind") == "replay" else ""
    return " ".join(filter(None, (fields.get("model"), how)))


def _words(methods: Sequence[Method]) -> dict[str, str]:
    """Return by subject each known setting of a problem, and those that all methods share."""
    fields = methods[0].scales[0].records[0]
    batch = {
        "strong": f"strong scaling, global batch {fields.get('global_batch')}",
        "weak": f"weak scaling, {_per_rank(fields)} images per rank",
    }.get(fields.get("scaling") or "", "scaling not stated")
    epochs, target = (fields.get(name) for name in ("epochs", "target_accuracy"))
    known = {
        "suite": f"suite {fields.get('suite')}",
        "task": f"{fields.get('model') or 'unnamed model'} on {fields.get('dataset') or 'unnamed data'}",
        "arithmetic": " ".join(str(fields[name]) for name in ("backend", "dtype") if fields.get(name)),
        **names_of(methods).common,
        "threads": plural(fields.get("threads_per_rank"), "thread", " per rank"),
        "batch": batch,
        "length": plural(epochs, "epoch") or plural(planned_steps(fields), "step"),
        "target": "" if target is None else f"target accuracy {digits(target)}",
        **conditions_in_words(fields),
    }
    return {name: word for name, word in known.items() if word}


def _per_rank(fields: Mapping[str, Any]) -> Any:
    whole = fields.get("global_batch")
    return fields.get("batch_per_rank") or ("equal" if whole is None else whole // fields["ranks"])
