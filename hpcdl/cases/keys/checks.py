"""Checks of a case before it runs: rows that have the key of a message, and the reason against a case.

``CHECKS`` of a kind has its rows in order. :func:`refusals` reads them, and the first one that refuses a case ends
the run with one line, ``key: reason``. Rows of features that exclude each other are in ``combinations.py``.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.cases.keys.key import FAULTS, keys
from hpcdl.cases.keys.scheme import traits_of
from hpcdl.data.parts.dataset import MissingDatasetError
from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.network import Wiring
from hpcdl.launch.machine import node_memory_bytes, shortage
from hpcdl.registry import nearest


class Setup:
    """A case that is checked; keys that its kind does not have are None."""

    def __init__(self, kind: str, spec: Any, given: Collection[str] = (), *, elsewhere: bool = False) -> None:
        self.kind, self.spec, self.given, self.elsewhere = kind, spec, given, elsewhere
        self.wrong: object = None

    def __getattr__(self, name: str) -> Any:
        spec = type(self.spec)
        return getattr(self.spec, name) if name in keys(spec) or hasattr(spec, name) else None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @cached_property
    def scheme(self) -> Aggregation | None:
        """Traits of the aggregation; None if the case has none."""
        uses = self.strategy is None or self.strategy.aggregates
        return traits_of(self.aggregation) if uses and self.aggregation else None

    @property
    def on_host(self) -> bool:
        """True if gradients are in the host's memory."""
        return self.kernels is None or bool(self.kernels.on_host)

    def exchanges(self, scheme: Aggregation) -> bool:
        """Return True if a scheme can exchange what the case's compressor makes."""
        if self.plan.kind == "vectors":
            return scheme.sums and not scheme.sparse
        messages = scheme.gathers or (self.plan.traits.both_ways and scheme.servers is not None)
        return messages or (self.plan.kind == "entries" and scheme.sparse)


@dataclass(frozen=True)
class Feature:
    """Property of a case."""

    text: str
    holds: Callable[[Setup], Any]
    key: str = ""
    """Key whose value a message shows instead of the text."""

    def shown(self, case: Setup) -> str:
        """Return the feature in a message."""
        value = getattr(case, self.key) if self.key else None
        return self.text if value is None else f"{self.key} {getattr(value, 'name', value)!r}"


@dataclass(frozen=True)
class Row:
    """Two features that exclude each other."""

    key: str
    """Key that the message is about."""
    feature: Feature
    other: Feature
    reason: str
    remedy: str = ""
    """If empty: choose an object without the other feature."""

    @property
    def advice(self) -> str:
        """The remedy, for any case."""
        key = self.other.key or self.key
        return self.remedy or f"choose another {'strategy' if key == 'training' else key}"

    def refusal(self, case: Setup) -> str:
        """Return the reason against a case that has both features; empty for others."""
        if not (self.feature.holds(case) and self.other.holds(case)):
            return ""
        first = self.feature.shown(case).removeprefix(f"{self.key} ").replace(f"the key {self.key}", "this key")
        return f"{self.key}: {first} cannot be used with {self.other.shown(case)}: {self.reason}; {self.advice}"


@dataclass(frozen=True)
class Check:
    """A condition that a case must meet; key and reason may name its values, as ``{ranks}`` or ``{data.name}``."""

    key: str
    """Key that the message is about."""
    wrong: Callable[[Setup], object]
    """Is false for a case that can run. An exception refuses a case with its own message."""
    reason: str = "{wrong}"
    """By default what ``wrong`` returns."""
    of: str = ""
    """Value without which a case meets the condition; by default that of the key, its first word, if it is one."""

    def refusal(self, case: Setup) -> str:
        """Return the reason against a case, led by the key; empty if it can run."""
        value = self.of or self.key.partition(":")[0]
        if value.isidentifier() and not case[value]:
            return ""
        try:
            case.wrong = self.wrong(case)
        except FAULTS as error:
            if case.elsewhere and isinstance(error, MissingDatasetError):
                raise
            reason = str(error) or type(error).__name__
        else:
            reason = self.reason.format_map(case) if case.wrong else ""
        return f"{self.key.format_map(case)}: {reason}" if reason else ""


Rows: TypeAlias = Sequence[Check | Row]


def refusals(
    rows: Rows, kind: str, spec: Any, given: Collection[str] = (), *, elsewhere: bool = False
) -> Iterator[str]:
    """Yield a message, led by a key, of each row that refuses a case; ``given``: keys in the suite.

    ``elsewhere``: it runs on another machine, which may have a dataset that is missing here.
    """
    case = Setup(kind, spec, given, elsewhere=elsewhere)
    for row in rows:
        with suppress(MissingDatasetError) if elsewhere else nullcontext():  # it may be right where its data are
            if reason := row.refusal(case):
                yield reason


def makes(key: str, name: str) -> Check:
    """Return the check that the property ``name`` of a case, made of a key, raises nothing."""
    return Check(key, lambda case: case[name] and None, of="ranks")


def once(key: str, other: str) -> Check:
    """Return the check that a case has one of two keys."""
    reason = f"give exactly one of {key} and {other}"
    return Check(key, lambda case: (case[key] is None) == (case[other] is None), reason, "ranks")


def too_large(size: int) -> str | None:
    """Return a line if ``size`` bytes exceed the memory of a node; None if they fit."""
    return shortage(size, 1, node_memory_bytes())


def _hosts(case: Setup) -> None:
    if case.cluster.topology is not None:
        Wiring(case.cluster, case.ranks)


CLUSTER: Final = (
    Check("topology", lambda case: _hosts(case) if case.network else None),
    Check("ranks", _hosts, of="network"),
)
"""Hosts of a simulated case hold its ranks."""


def _pause(case: Setup) -> object:
    slow = case.straggler
    slow.check(case.ranks)
    way, _, name = slow.at.partition(" ")
    if way not in (INPUT, "forward", "backward") or slow.at == f"{INPUT} {name}":
        return f"at: {slow.at!r} is neither input nor forward or backward, nor that of a layer"
    group = case.group_ranks
    places = [slow.rank % group] if isinstance(slow.rank, int) else range(group)
    parts = [case.divisions[at].parts if case.divisions else case.layers[case.parts[at]] for at in places]
    names = [layer.name for part in parts for layer in part]
    return slow.at != way and name not in names and f"at: the rank has no layer {name!r}{nearest(name, names)}"


STRAGGLER: Final = Check("straggler", _pause)
"""A straggler is a rank of the case, and pauses before work that it has."""

STAGES: Final = (
    Check(
        "training: microbatches",
        lambda case: case.microbatches > case.fewest_images,
        "must be at most {fewest_images}, the images of a batch, not {microbatches}",
    ),
    Check(
        "mesh",
        lambda case: case.stages > (layers := len(case.layers)) and f"{layers} layers, too few for {case.stages}",
        "{model} has {wrong} stages",
        of="ranks",
    ),
    Check("mesh", lambda case: case.mesh.check_divisions(case.layers, case.shape, case.ranks)),
)
"""Every stage has images and layers, and the layers can be split."""
