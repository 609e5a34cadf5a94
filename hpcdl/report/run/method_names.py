"""Names of rows: as brief as the other rows of a table allow."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from hpcdl.analysis.run.record import ANY, Record
from hpcdl.cases.keys.suite_tables import columns_with
from hpcdl.registry import parts
from hpcdl.report.formats.cells import NONE, plural, volume
from hpcdl.training.parts.traits import BY_STRATEGY


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of run folders, each with as many parent folders as tell it from the others.

    Raises ValueError for a run that is given twice.
    """
    folders = [path.parent if path.name == "run.h5" else path for path in (path.resolve() for path in paths)]
    if len(set(folders)) < len(folders):
        twice = next(path for path, folder in zip(paths, folders, strict=True) if folders.count(folder) > 1)
        raise ValueError(f"{twice}: the run is given more than once")
    for depth in count(1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise AssertionError  # whole paths differ


MAX_NAMED: Final = 2
"""Methods that a sentence or a cell names; more are counted."""


def several(names: Sequence[str], nothing: str = NONE) -> str:
    """Return the names as a list in words; of more than :data:`MAX_NAMED` the first, and the number of others."""
    others, comma = len(names) - MAX_NAMED, "; " if any(", " in name for name in names) else ", "
    if others > 0:
        names = [*names[:MAX_NAMED], plural(others, "other")]
    return " and ".join([*filter(None, [comma.join(names[:-1])]), *names[-1:]]) or nothing


def scheme_name(record: Record) -> str:
    """The aggregation, with its compression where there is one; that alone where a strategy moves its messages."""
    aggregation, compression = record.aggregation or "none", record.compression or "none"
    name = {ANY: "any scheme", BY_STRATEGY: ""}.get(aggregation, aggregation)
    name += " on 2 communicators" if record.communicators == 2 else ""
    return name if compression == "none" else f"{name} + {compression}".removeprefix(" + ")


class Names:
    """Names for the methods of one table.

    A method is called as in its suite. Of settings only those are named that differ between strategies, or
    optimizers, of the same name; settings that follow from the named ones are left out.
    """

    def __init__(self, cases: Iterable[Record]) -> None:
        self._cases = list(cases)
        self._brief = {
            **{field: _brief(self._all(field)) for field in ("training", "parallelism", "optimizer", "schedule")},
            "learning_rate": {rate: f"rate {rate}" for rate in self._all("learning_rate")},
            "tuning": {
                trials: f"{trials} trial{'s' * (trials != '1')}" if trials else "not tuned"
                for trials in self._all("tuning")
            },
        }
        self._brief["parallelism"][""] = "data-parallel"
        for name in columns_with("method"):
            if name not in {*self._brief, "aggregation", "compression"}:
                self._brief[name] = {text: f"{name} {text}" if text else "" for text in self._all(name)}
        self._next: dict[tuple[str, ...], set[str]] = {}
        """Texts of a field of the cases with these texts in the fields before it."""
        self._schemes: dict[tuple[str, bool], set[str]] = {}
        """Schemes by strategy, and whether on one rank, where they count only if there are no others."""
        for case in self._cases:
            texts = self._texts(case)
            for place, text in enumerate(texts):
                self._next.setdefault(texts[:place], set()).add(text)
            alone = text_of(case, "training"), case.ranks == 1
            self._schemes.setdefault(alone, set()).add(scheme_name(case))

    def __call__(self, case: Record) -> str:
        """Return the fields in which ``case`` differs from the others, else its aggregation or strategy."""
        texts, words = self._texts(case), list[str]()
        for place, (field, brief) in enumerate(self._brief.items()):
            if len(self._next.get(texts[:place], ())) > 1:
                words.append(brief.get(texts[place], ""))
            schemes = self._schemes.get((texts[place], False)) or self._schemes.get((texts[place], True), set())
            if field == "training" and len(schemes) > 1:
                words.append(scheme_name(case))
                words.sort(key=lambda word: word.endswith(BACKWARD))  # "ring, one sum after backward"
        alone = scheme_name(case) or self._brief["training"].get(text_of(case, "training"), "")
        return ", ".join(filter(None, words)) or alone

    @property
    def common(self) -> dict[str, str]:
        """Fields that all cases share and no name has, in words."""
        shared = {name: self._all(name).pop() for name in self._brief if len(self._all(name)) == 1}
        for name, noun in (
            ("schedule", "schedule"),
            ("learning_rate", "learning rate"),
            ("tuning", "tuning trials"),
        ):
            if shared.get(name):
                shared[name] = f"{noun} {shared[name]}"
        summed = all(case.aggregation != BY_STRATEGY for case in self._cases)
        several = [case for case in self._cases if case.ranks != 1] or self._cases
        schemes = {scheme_name(case) for case in several}
        if len(shared) < len(self._brief) and len(schemes) == 1 and summed:
            shared["aggregation"] = f"aggregation {schemes.pop()}"
        return shared

    def _all(self, field: str) -> list[str]:
        return list(dict.fromkeys(text_of(case, field) for case in self._cases))

    def _texts(self, case: Record) -> tuple[str, ...]:
        return tuple(text_of(case, field) for field in self._brief)


def text_of(case: Record, field: str) -> str:
    """A column in words; empty where there is none."""
    value = case.stated(field)
    return f"{value:g}" if isinstance(value, float) else str(value or "")


SCALED: Final = "scale_rate"
"""Setting that is named although all have it: a remedy for stale gradients, as much as the strategy."""


def _brief(labels: Iterable[str]) -> dict[str, str]:
    """By label its name, with the settings in which it differs from others of the same name."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(parts(label)[0], []).append(label)
    names = {}
    for head, same in alike.items():
        settings = {label: parts(label)[1] for label in same}
        keys = list(dict.fromkeys(key for setting in settings.values() for key in setting))
        differing = [
            key for key in keys if key == SCALED or len({setting.get(key) for setting in settings.values()}) > 1
        ]
        for label, setting in settings.items():
            named = {key: setting[key] for key in differing if key in setting}
            listed = ",".join(f"{key}={value}" for key, value in named.items())
            names[label] = _buckets(head, named) or (f"{head}({listed})" if listed else head)
    return names


BACKWARD: Final = "backward"
"""Last word of the names of synchronous training by its buckets."""


def _buckets(head: str, settings: Mapping[str, str]) -> str:
    """Return the name of synchronous training by the size of its buckets; empty for other settings."""
    size = settings.get("bucket_bytes", "")
    if head != "synchronous" or not size.isdecimal():
        return ""
    return f"buckets of {volume(int(size))} during {BACKWARD}" if int(size) else f"one sum after {BACKWARD}"
