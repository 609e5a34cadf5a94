"""Names of rows: as brief as the other rows of a table allow."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

from hpcdl.analysis.run.record import ANY, Record, group_by_key
from hpcdl.cases.keys.suite_tables import columns_with
from hpcdl.registry import parts
from hpcdl.report.formats.cells import NONE, plural, volume
from hpcdl.report.run.literature import IMPLIED
from hpcdl.training.parts.traits import BY_STRATEGY


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of run folders, each with as many parent folders as tell it from the others.

    Raises ValueError for a run that is given twice.
    """
    folders = [path.parent if path.name == "run.h5" else path for path in (path.resolve() for path in paths)]
    if len(set(folders)) < len(folders):
        twice = next(path for path, folder in zip(paths, folders, strict=True) if folders.count(folder) > 1)
        raise ValueError(f"{twice}: the run is given more than once")
    lengthened = (["/".join(folder.parts[-depth:]) for folder in folders] for depth in count(1))
    return next(names for names in lengthened if len(set(names)) == len(names))  # whole paths differ


def several(names: Sequence[str]) -> str:
    """Return the names as a list in words; of more than two the first two, and the number of others."""
    comma = "; " if any(", " in name for name in names) else ", "
    if len(names) > 2:
        names = [*names[:2], plural(len(names) - 2, "other")]
    return " and ".join([*filter(None, [comma.join(names[:-1])]), *names[-1:]]) or NONE


def scheme_name(record: Record) -> str:
    """The aggregation, with its compression where there is one; that alone where a strategy moves its messages."""
    aggregation, compression = record.aggregation or "none", record.compression or "none"
    name = {ANY: "any scheme", BY_STRATEGY: ""}.get(aggregation, aggregation)
    return name if compression == "none" else f"{name} + {compression}".removeprefix(" + ")


class Names:
    """Names for the methods of one table.

    A strategy has the literature's name, as in sentences, if it is one on all numbers of ranks; anything else is
    called as in its suite. Of settings only those are named that differ between strategies, or optimizers, of the
    same name; settings that follow from the named ones are left out.
    """

    def __init__(self, cases: Iterable[Record]) -> None:
        self._cases = list(cases)
        self._brief = {
            "training": _brief(self._strategies()),
            **{field: _brief(self._parts(field)) for field in ("parallelism", "optimizer", "schedule")},
            "learning_rate": {rate: f"rate {rate}" for rate in self._all("learning_rate")},
            "tuning_like": {text: f"rate of {text}" if text else "" for text in self._all("tuning_like")},
            "tuning": {text: plural(int(text), "trial") if text else "not tuned" for text in self._all("tuning")},
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
            self._schemes.setdefault((texts[0], case.ranks == 1), set()).add(scheme_name(case))

    def __call__(self, case: Record) -> str:
        """Return the fields in which ``case`` differs from the others, else its aggregation or strategy."""
        texts, words = self._texts(case), list[str]()
        schemes = self._schemes.get((texts[0], False)) or self._schemes.get((texts[0], True), set())
        for place, (field, brief) in enumerate(self._brief.items()):
            if len(self._next.get(texts[:place], ())) > 1:
                words.append(brief.get(texts[place], ""))
            if field == "training" and len(schemes) > 1:
                words.append(scheme_name(case))
                words.sort(key=lambda word: word.endswith("backward"))  # "ring, one sum after backward"
        alone = scheme_name(case) or self._brief["training"].get(texts[0], "")
        return ", ".join(filter(None, words)) or alone

    @property
    def common(self) -> dict[str, str]:
        """Fields that all cases share and no name has, in words."""
        shared = {name: self._all(name).pop() for name in self._brief if len(self._all(name)) == 1}
        nouns = {"schedule": "schedule", "learning_rate": "learning rate", "tuning": "tuning trials"}
        shared |= {name: f"{noun} {shared[name]}" for name, noun in nouns.items() if shared.get(name)}
        summed = all(case.aggregation != BY_STRATEGY for case in self._cases)
        schemes = {*map(scheme_name, [case for case in self._cases if case.ranks != 1] or self._cases)}
        if len(shared) < len(self._brief) and len(schemes) == 1 and summed:
            shared["aggregation"] = f"aggregation {schemes.pop()}"
        return shared

    def _all(self, field: str) -> list[str]:
        return list(dict.fromkeys(text_of(case, field) for case in self._cases))

    def _parts(self, field: str) -> dict[str, tuple[str, dict[str, str]]]:
        return {label: parts(label) for label in self._all(field)}

    def _strategies(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Return name and settings by label; the literature's name has those settings that it does not imply."""
        systems = group_by_key((text_of(case, "training"), case.system or "") for case in self._cases)
        named = plain = self._parts("training")
        for label, (_, settings) in plain.items():
            if len({*systems[label]}) == 1 and (system := min(systems[label])):
                named = named | {label: (system, {k: v for k, v in settings.items() if not k.startswith(IMPLIED)})}
        return named if len({*map(str, named.values())}) == len(named) else plain

    def _texts(self, case: Record) -> tuple[str, ...]:
        return tuple(text_of(case, field) for field in self._brief)


def text_of(case: Record, field: str) -> str:
    """A column in words; empty where there is none."""
    value = case.stated(field)
    return f"{value:g}" if isinstance(value, float) else str(value or "")


def _brief(known: Mapping[str, tuple[str, dict[str, str]]]) -> dict[str, str]:
    """Return by label its name, with the settings in which it differs from others of the same name.

    ``scale_rate`` is named although all have it: a remedy for stale gradients, as much as the strategy.
    """
    names = {}
    for label, (head, settings) in known.items():
        alike = [others for name, others in known.values() if name == head]
        keys = dict.fromkeys(key for others in alike for key in others if key in settings)
        differing = [key for key in keys if key == "scale_rate" or len({others.get(key) for others in alike}) > 1]
        listed = ",".join(f"{key}={settings[key]}" for key in differing)
        names[label] = f"{head}({listed})" if listed else head
        size = settings["bucket_bytes"] if "bucket_bytes" in differing else ""
        if head == "synchronous" and size.isdecimal():
            buckets = f"buckets of {volume(int(size))} during backward"
            names[label] = buckets if int(size) else "one sum after backward"
    return names
