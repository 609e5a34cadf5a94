"""What a row is called: as briefly as the other rows of its table allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.analysis.fields import ANY, OWN
from hpcdl.analysis.labels import parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def scheme_name(fields: Mapping[str, Any]) -> str:
    """The aggregation, with its compression where there is one; empty where a strategy moves its messages."""
    aggregation, compression = (fields.get(name) or "none" for name in ("aggregation", "compression"))
    name = {ANY: "any scheme", OWN: ""}.get(str(aggregation), str(aggregation))
    return name if compression == "none" else f"{name} + {compression}".strip()


class Names:
    """Names for the methods of one table.

    A strategy is called what its paper calls it (the record's ``system``), else by its name; of settings only
    those are told that differ between strategies, or optimizers, of the same name. What follows from what has been
    told is not told.
    """

    def __init__(self, cases: Iterable[Mapping[str, Any]]) -> None:
        self._cases = list(cases)
        titles: dict[str, set[str]] = {}
        for case in self._cases:
            titles.setdefault(said(case, "training"), set()).add(str(case.get("system") or ""))
        known = {label: one.pop() for label, one in titles.items() if len(one) == 1}
        self._brief = {
            "training": _brief({label: known.get(label) or parts(label)[0] for label in titles}),
            "optimizer": _brief({label: parts(label)[0] for label in self._all("optimizer")}),
            "schedule": _brief({label: parts(label)[0] for label in self._all("schedule")}),
            "learning_rate": {rate: f"rate {rate}" for rate in self._all("learning_rate")},
        }

    def __call__(self, case: Mapping[str, Any]) -> str:
        """What tells ``case`` from the others; the aggregation, or the strategy, where nothing does."""
        given: list[str] = []
        words = []
        for field, brief in self._brief.items():
            if len(self._all(field, case, given)) > 1:
                words.append(brief.get(said(case, field), ""))
            if field == "training" and len(self._schemes(case)) > 1:
                words.append(scheme_name(case))
            given.append(field)
        alone = scheme_name(case) or self._brief["training"].get(said(case, "training"), "")
        return ", ".join(filter(None, words)) or alone

    @property
    def common(self) -> dict[str, str]:
        """In words, by field, what all of them share and no name tells."""
        shared = {name: self._all(name).pop() for name in self._brief if len(self._all(name)) == 1}
        for name, what in (("schedule", "schedule"), ("learning_rate", "learning rate")):
            if shared.get(name):
                shared[name] = f"{what} {shared[name]}"
        summed = all(case.get("aggregation") != OWN for case in self._cases)
        if len(shared) < len(self._brief) and len(self._schemes()) == 1 and summed:
            shared["aggregation"] = f"aggregation {self._schemes().pop()}"
        return shared

    def _all(self, field: str, like: Mapping[str, Any] | None = None, given: Iterable[str] = ()) -> set[str]:
        """What is said of ``field``, by those that agree with ``like`` in the fields that are ``given``."""
        wanted = {name: said(like, name) for name in given} if like else {}
        return {
            said(case, field)
            for case in self._cases
            if all(said(case, name) == value for name, value in wanted.items())
        }

    def _schemes(self, like: Mapping[str, Any] | None = None) -> set[str]:
        """Ways of summing, of the strategy of ``like``; one rank sums nothing, a strategy's own is no choice."""
        cases = [one for one in self._cases if not like or said(one, "training") == said(like, "training")]
        several = [case for case in cases if case.get("ranks") != 1] or cases
        return {scheme_name(case) for case in several if case.get("aggregation") != OWN}


def said(case: Mapping[str, Any], field: str) -> str:
    """A field in words; empty where there is none."""
    value = case.get(field)
    return f"{value:g}" if isinstance(value, float) else str(value or "")


def _brief(heads: Mapping[str, str]) -> dict[str, str]:
    """By label its head, with the settings in which it differs from others of the same head."""
    alike: dict[str, list[str]] = {}
    for label, head in heads.items():
        alike.setdefault(head, []).append(label)
    found = {}
    for head, labels in alike.items():
        settings = {label: parts(label)[1] for label in labels}
        keys = list(dict.fromkeys(key for one in settings.values() for key in one))
        differing = [key for key in keys if len({one.get(key) for one in settings.values()}) > 1]
        for label, one in settings.items():
            told = ",".join(f"{key}={one[key]}" for key in differing if key in one)
            found[label] = f"{head}({told})" if told else head
    return found
