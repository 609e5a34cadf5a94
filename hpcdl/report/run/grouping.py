"""Records grouped for tables: methods of a problem at several scales with several seeds; settings in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from string import ascii_uppercase
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import ANY, Key, Record, group_by_key, judge_methods
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.registry import parts
from hpcdl.report.formats.cells import percent, plural
from hpcdl.report.run.names import Names, link_title, network_name, without_settings
from hpcdl.trace.quantity import Quantity


@dataclass(frozen=True)
class Scale:
    """One method at one number of ranks: one record per seed."""

    records: list[Record]

    @property
    def record(self) -> Record:
        """That of the first seed, for what does not depend on it."""
        return self.records[0]

    def values(self, quantity: Quantity[Any]) -> list[float]:
        """Return the known values, one per seed."""
        return [value for record in self.records if (value := quantity.of(record)) is not None]

    def median(self, quantity: Quantity[Any]) -> float | None:
        """Over seeds; None when unknown."""
        values = self.values(quantity)
        return float(np.median(values)) if values else None

    def bounds(self, quantity: Quantity[Any]) -> tuple[float | None, float | None]:
        """Return the widest interval over seeds; of a quantity without one the range; None if unknown for any."""
        low, high = self.values(quantity.low or quantity), self.values(quantity.high or quantity)
        count = len(self.records)
        return min(low) if len(low) == count else None, max(high) if len(high) == count else None

    @property
    def is_base(self) -> bool:
        """True if the other scales are compared with this one."""
        return self.record.ranks == self.record.base_ranks

    @property
    def disturbed(self) -> bool:
        """True if the case or its base was disturbed from outside the job, for any seed."""
        return any(record.disturbed or record.base_disturbed for record in self.records)

    @property
    def near_linear(self) -> bool | None:
        """True: the efficiency is above 0.90 for all seeds; False: below; None: inconclusive or disturbed."""
        verdicts = {record.near_linear for record in self.records}
        return verdicts.pop() if len(verdicts) == 1 and not self.disturbed else None


def changes_of_accuracy(base: Scale, others: Iterable[Scale]) -> list[Interval]:
    """Return the final accuracy of each other one less that of the base, in percentage points."""
    family = [base.records, *(other.records for other in others)]
    return [in_points(one.swapped.size) for one in judge_methods([family], Record.final_accuracy)[0]]


def in_points(change: Interval) -> Interval:
    """Return a difference of shares in percentage points."""
    return Interval(*(100 * bound for bound in change))


@dataclass(frozen=True)
class Method:
    """One way of solving a problem, at rising numbers of ranks."""

    name: str
    scales: list[Scale]

    @property
    def record(self) -> Record:
        """That of the smallest scale."""
        return self.scales[0].record

    @property
    def no_communication(self) -> bool:
        """True if it does not communicate."""
        return bool(self.record.independent)

    @property
    def beyond(self) -> list[Scale]:
        """Scales that are compared with a base."""
        return [scale for scale in self.scales if not scale.is_base]

    @property
    def near_linear(self) -> list[Scale]:
        """Scales up to the largest before one that is not near-linear."""
        return list(takewhile(lambda scale: scale.near_linear, self.beyond))

    @property
    def is_compared(self) -> bool:
        """True if an efficiency was measured at any scale beyond the base."""
        return any(scale.values(Record.efficiency) for scale in self.beyond)


@dataclass(frozen=True)
class Row:
    """A line of a table about training."""

    name: str
    scale: Scale
    no_communication: bool = False
    """True if its ranks do not communicate although they are several."""
    is_compared: bool = True
    """True if it has an efficiency: a base without other scales has none."""
    members: Sequence[Row] = ()
    """The rows that were pooled into it: methods that are the same program on one rank."""

    @property
    def step_seconds(self) -> float | None:
        """Median step; of pooled methods that are the base of others, the base's."""
        pooled = self.scale.median(Record.base_step_seconds) if self.members and self.scale.is_base else None
        return self.scale.median(Record.step_seconds) if pooled is None else pooled


def problems(records: Iterable[Record]) -> list[list[Method]]:
    """Training records by problem, then by method, then by ranks ascending; first come, first shown."""
    groups: dict[Key, dict[Key, dict[int, list[Record]]]] = {}
    for record in records:
        if record.is_training:
            methods = groups.setdefault(record.problem(), {})
            methods.setdefault(record.configuration(), {}).setdefault(record.ranks, []).append(record)
    return [
        [
            Method(names(next(iter(scales.values()))[0]), [Scale(scales[ranks]) for ranks in sorted(scales)])
            for scales in methods.values()
        ]
        for methods in groups.values()
        for names in [Names(record for scales in methods.values() for same in scales.values() for record in same)]
    ]


def rows(methods: Sequence[Method]) -> list[Row]:
    """Return a row per method and scale; methods that are one program on one rank share a row, the first."""
    names = Names(record for method in methods for scale in method.scales for record in scale.records)
    every = [
        Row(method.name, scale, method.no_communication and scale.record.ranks > 1, method.is_compared)
        for method in methods
        for scale in method.scales
    ]
    single = group_by_key((row.scale.record.method, row) for row in every if row.scale.record.ranks == 1)
    others = [row for row in every if row.scale.record.ranks > 1]
    return [*(_pooled(alike, names) for alike in single.values()), *others]


def largest_first(methods: Sequence[Method], quantity: Quantity[Any]) -> list[Row]:
    """Return the rows of :func:`rows` whose ``quantity`` is known, by its median over seeds."""
    shown = [row for row in rows(methods) if row.scale.values(quantity)]
    return sorted(shown, key=lambda row: -(row.scale.median(quantity) or 0.0))


def _pooled(alike: Sequence[Row], names: Names) -> Row:
    if len(alike) == 1:
        return alike[0]
    records = [record for row in alike for record in row.scale.records]
    name = names(records[0].but(aggregation=ANY))
    compared = any(row.is_compared for row in alike)
    return Row(f"1 rank ({name})", Scale(records), is_compared=compared, members=alike)


ABSENT: Final = {
    "straggler": "no straggler",
    "failure": "no failure",
    "shares": "equal shares",
    "simulated": "measured",
    "trace": "trace=events",
}
"""Text for the default of a condition, shown if other cases of the report have it."""
PLAIN: Final = "plain"
"""Name of a problem without any of the settings of the others."""


class Problem(NamedTuple):
    """Name of a problem among those of a report."""

    network: str
    apart: str
    """Further settings that distinguish it; empty if the network does."""
    settings: str
    """Settings in which problems differ, without those of the name."""


@dataclass(frozen=True)
class Settings:
    """The problems of a report."""

    common: str
    own: Mapping[Key, Problem]
    several: bool
    """True if problems differ in their network."""

    def _problem(self, record: Record) -> Problem:
        return self.own.get(record.problem()) or Problem(network_name(str(record.model or "")), "", "")

    def name(self, record: Record) -> str:
        """Return the name of a problem for a title: its network, or what differs; empty if it is alone."""
        return self._name(self._problem(record))

    def _name(self, problem: Problem) -> str:
        return _without((problem.network if self.several else "", problem.apart))

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Name and settings of each problem; empty if there is only one."""
        return [(self._name(problem), problem.settings) for problem in self.own.values() if len(self.own) > 1]

    def subject(self, record: Record, *further: str) -> str:
        """Return the name of a problem for a sentence: its network, and what differs in parentheses."""
        network, apart, _ = self._problem(record)
        words = _without((_spelled(apart), *further), *([PLAIN] if any(further) else []))
        return network + (f" ({words})" if words else "")

    def where(self, record: Record, *further: str) -> str:
        """Return network, what differs, and ranks in parentheses, for the end of a sentence."""
        network, apart, _ = self._problem(record)
        return f"({_without((network, _spelled(apart), *further, plural(record.ranks, 'rank')))})"

    def further(self, record: Record) -> str:
        """Return the settings that the name leaves out as a sentence; empty if there is only one problem."""
        settings = self._problem(record).settings
        return f"{settings}. " if settings else ""

    def title(self, record: Record) -> str:
        """Return name and further settings; empty if there is only one problem."""
        return ": ".join(filter(None, (self.name(record), self._problem(record).settings)))


def settings(groups: Sequence[Sequence[Method]]) -> Settings:
    """Compare the problems of ``groups`` (of :func:`~hpcdl.report.run.grouping.problems`) word by word."""
    words = [_words(methods) for methods in groups]
    names = list(dict.fromkeys(name for named in words for name in named))
    shared = [name for name in names if len({named.get(name) for named in words}) == 1]
    common = [words[0][name] for name in shared if name != "suite"]
    absent = {name: word for name, word in ABSENT.items() if name in names and name not in shared}
    differing = [{name: word for name, word in {**absent, **each}.items() if name not in shared} for each in words]
    firsts = [methods[0].record for methods in groups]
    networks = _networks(firsts)
    apart = [""] * len(groups)
    for network in {network for network in networks if networks.count(network) > 1}:
        alike = [number for number, other in enumerate(networks) if other == network]
        links = [firsts[number].network or "" for number in alike]
        for number, name in zip(alike, _apart(links, [differing[number] for number in alike]), strict=True):
            apart[number] = name
    own = {
        record.problem(): Problem(network, name, _without(named.values(), name))
        for record, network, name, named in zip(firsts, networks, apart, differing, strict=True)
    }
    return Settings(", ".join(common), own, several=len(set(networks)) > 1)


def _apart(links: Sequence[str], settings: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Return the words that distinguish problems of one network: of as few subjects as possible, the shortest.

    Letters if no three subjects suffice. ``links``: names of simulated networks.
    """
    names = list(dict.fromkeys(name for named in settings for name in named))
    subjects = {name: _pieces([named.get(name, "") for named in settings]) for name in names}
    # a condition before a length or a batch, which may differ only to suit it
    ordered = sorted((name not in ABSENT, max(map(len, kind)), kind) for name, kind in subjects.items())
    short = (kind for _, size, kind in ordered if size <= 56)  # characters, as it names a problem
    kinds = [kind for kind in (links, *short) if len(set(kind)) > 1]
    for some in (some for count in (1, 2, 3) for some in combinations(kinds, count)):
        apart = [_without(words, *ABSENT.values()) or words[0] or PLAIN for words in zip(*some, strict=True)]
        if len(set(apart)) == len(apart):
            return apart
    return [*ascii_uppercase, *map(str, range(len(ascii_uppercase) + 1, len(links) + 1))][: len(links)]


def _without(words: Iterable[str], *others: str) -> str:
    return ", ".join(word for word in words if word and word not in others)


def _spelled(apart: str) -> str:
    return ", ".join(map(link_title, apart.split(", ")))


def _pieces(words: Sequence[str]) -> list[str]:
    """Return the words of one subject without the pieces between commas that all problems share."""
    pieces = [[word] if "(" in word else word.split(", ") for word in words]
    return [", ".join(piece for piece in some if not all(piece in other for other in pieces)) for some in pieces]


def _networks(records: Sequence[Record]) -> list[str]:
    """Return the network of each problem, without settings that all problems of that network share.

    "simulated" or "replayed" precedes the name if problems differ in that.
    """
    models = [str(record.model or "") for record in records]
    alike = {head: {model for model in models if parts(model)[0] == head} for head, _ in map(parts, models)}
    is_one = [len(alike[parts(model)[0]]) == 1 for model in models]
    names = [
        network_name(without_settings(name) if one else name) for name, one in zip(models, is_one, strict=True)
    ]
    run = ["simulated" if record.network else "replayed" if record.kind == "replay" else "" for record in records]
    return [f"{how} {name}".strip() for how, name in zip(run, names, strict=True)] if len(set(run)) > 1 else names


def _words(methods: Sequence[Method]) -> dict[str, str]:
    """Return by subject each known setting of a problem, and those that all methods share."""
    record, batch = methods[0].record, methods[0].record.global_batch
    names = Names(record for method in methods for scale in method.scales for record in scale.records)
    per_rank = record.batch_per_rank or ("equal" if batch is None else batch // record.ranks)
    scaling = {
        "strong": f"strong scaling, global batch {batch}",
        "weak": f"weak scaling, {per_rank} images per rank",
    }
    known = {
        "suite": f"suite {record.suite}",
        "task": f"{record.model or 'unnamed model'} on {record.dataset or 'unnamed data'}",
        "arithmetic": " ".join(filter(None, (record.backend, record.dtype))),
        **names.common,
        "threads": plural(record.threads_per_rank, "thread", " per rank"),
        "batch": scaling.get(record.scaling or "", "scaling not stated"),
        "length": plural(record.epochs, "epoch") or plural(_suite_steps(record), "step"),
        "target": "" if record.target_accuracy is None else f"target accuracy {percent(record.target_accuracy)}",
        **record.words,
    }
    return {name: word for name, word in known.items() if word}


def _suite_steps(record: Record) -> int | None:
    """Return the steps that the suite and the case's name state: those of a replay are without warm-up."""
    steps = record.planned_steps
    if record.kind != "replay" or steps is None:
        return steps
    if record.network and steps == record.steps == 1:  # of a version that did not state those of the suite
        return None
    return steps - record.warmup_steps
