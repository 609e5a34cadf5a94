"""Suites: TOML text to validated, expanded cases. The only place where names become objects."""

from __future__ import annotations

import hashlib
import itertools
import json
import pkgutil
import re
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcdl import cases, registry
from hpcdl.data.dataset import DataError
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.phantom import phantom
from hpcdl.fabric.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.journal import Journal

Scalar = str | int | float | bool | None
REQUIRED: Final = object()
LIMIT: Final = 1 << 63
"""Numbers are less than this: traces hold 64 bits."""
MOST_TRIED: Final = 32
"""Ranks up to which an aggregation is tried out in simulation: about 10 ms for a ring."""


class UsageError(Exception):
    """Something the user wrote cannot be run; one line that names file and key. Exit code 2."""


@dataclass(frozen=True)
class Key:
    """What a key of a case may hold."""

    types: tuple[type, ...]
    default: Any = REQUIRED
    folder: str | None = None
    """The registry folder whose names (or tables with a ``name``) are its values."""
    choices: tuple[str, ...] = ()
    least: Any = None
    usual: Any = None
    """What a ``default`` of None stands for once the case is checked, which asks whether the key is given."""


class Kind(Protocol):
    """A module of :mod:`hpcdl.cases`: how a kind of case is written, checked and run."""

    KEYS: Mapping[str, Key]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError ("key: what is wrong") for settings that cannot run, before anything does."""
        ...

    def memory_bytes(self, settings: Mapping[str, Any]) -> int:
        """What each rank needs of its node's memory, at the least."""
        ...

    def identity(self, settings: Mapping[str, Any]) -> list[str]:
        """The words of the case's name."""
        ...

    def fields(self, settings: Mapping[str, Any]) -> dict[str, Scalar]:
        """What the record says about the case, under the contract's field names."""
        ...

    def program(
        self, settings: Mapping[str, Any], journal: Journal
    ) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
        """What every rank runs; rank 0's answer adds to the record."""
        ...


@dataclass(frozen=True)
class Case:
    """One case, every value settled."""

    suite: str
    name: str
    kind: str
    settings: dict[str, Any]
    differing: tuple[str, ...] = ()
    """Keys that alone tell it from its likes in the suite; its name says their values."""

    @property
    def ranks(self) -> int:
        """Ranks it runs on, real or simulated."""
        return int(self.settings["ranks"])

    @property
    def processes(self) -> int:
        """MPI processes it needs: a simulation needs one."""
        return 1 if self.settings.get("network") else self.ranks

    @property
    def mortal(self) -> bool:
        """Whether one of its processes is to die; a simulated rank's death harms none."""
        return bool(self.settings.get("failure")) and not self.settings.get("network")

    @property
    def digest(self) -> str:
        """Short hash of everything that defines the case: finished cases are recognised by it."""
        text = json.dumps([self.kind, self.settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def module(self) -> Kind:
        """The module of its kind."""
        return kind_of(self.kind)

    def fields(self) -> dict[str, Scalar]:
        """The record's fields that are known before it runs."""
        known = self.module.fields(self.settings)
        told = [str(known.get("configuration") or "")]
        told += [f"{key}={label(self.settings[key])}" for key in self.differing if key not in (*known, "seed")]
        return {
            "suite": self.suite,
            "case": self.name,
            "kind": self.kind,
            "digest": self.digest,
            "ranks": self.ranks,
            "seed": self.settings.get("seed"),
            **known,
            "configuration": ", ".join(dict.fromkeys(filter(None, told))),
        }


@dataclass(frozen=True)
class Suite:
    """A suite file."""

    name: str
    question: str
    text: str
    cases: tuple[Case, ...]
    others: tuple[Case, ...] = ()
    """Those that were not chosen: a run folder may hold them."""

    def matching(self, glob: str) -> Suite:
        """Only the cases whose name is ``glob`` or matches it; raises UsageError if there is none."""
        chosen = tuple(case for case in self.cases if case.name == glob or fnmatch(case.name, glob))
        if not chosen:
            raise UsageError(f"--case {glob!r} matches none of the cases, such as {self.cases[0].name!r}")
        others = tuple(case for case in self.cases if case not in chosen)
        return Suite(self.name, self.question, self.text, chosen, others)


def kinds() -> tuple[str, ...]:
    """All kinds of case."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(cases.__path__)))


def kind_of(name: str) -> Kind:
    """The module of a kind. Raises ValueError for an unknown one."""
    if name not in kinds():
        raise ValueError(f"unknown {name!r}{registry.nearest(name, kinds())}")
    return import_module(f"hpcdl.cases.{name}")


def load(path: Path, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite file. Raises UsageError if it cannot be read or does not :func:`parse`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such suite file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not TOML: not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, str(path), overrides)


def parse(text: str, source: str, overrides: Sequence[str] = ()) -> Suite:
    """Turn the text of the suite file ``source`` into cases.

    ``overrides`` are the arguments of ``--set``: ``case.KEY=VALUE`` or ``suite.KEY=VALUE``, as in TOML.
    Raises UsageError for anything that could not run to its end: unknown keys and names, values out of range,
    missing data, impossible shapes.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    _only(tables, ("suite", "case"), source)
    head, written = tables.get("suite", {}), tables.get("case", [])
    if not isinstance(head, dict):
        raise UsageError(f"{source}: there is no [suite]")
    if not isinstance(written, list) or not written or not all(isinstance(table, dict) for table in written):
        raise UsageError(f"{source}: there is no [[case]]")
    for override in overrides:
        _override(override, head, written)
    _only(head, ("name", "question"), f"{source}: [suite]")
    name, question = head.get("name"), head.get("question", "")
    if name is None:
        raise UsageError(f"{source}: [suite]: name: a suite needs a name")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name):
        raise UsageError(f"{source}: [suite]: name: must be a word that can name a folder, not {name!r}")
    if not isinstance(question, str):
        raise UsageError(f"{source}: [suite]: question: must be str, not {question!r}")
    found = []
    for number, table in enumerate(written, 1):
        where = f"{source}: [[case]] {number}"
        found += [_case(name, values, where) for values in _expand(table, where)]
    return Suite(name, question, text, tuple(_named_apart(found, source)))


def _only(table: Mapping[str, Any], valid: Iterable[str], where: str) -> None:
    for key in table:
        if key not in valid:
            raise UsageError(f"{where}: {key}: unknown key{registry.nearest(key, valid)}")


def _override(text: str, head: dict[str, Any], written: list[dict[str, Any]]) -> None:
    target, equals, value = text.partition("=")
    path = target.strip().split(".")
    if not equals or len(path) < 2 or path[0] not in ("case", "suite"):
        raise UsageError(f"--set {text!r}: write case.KEY=VALUE or suite.KEY=VALUE")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()  # a bare word is a string
    if path[0] == "suite":
        head[path[1]] = parsed
        return
    takers = [table for table in written if path[1] in ("kind", *_keys_of(table))]
    if not takers:
        valid = {"kind", *(key for table in written for key in _keys_of(table))}
        raise UsageError(f"--set {text!r}: no case has the key {path[1]!r}{registry.nearest(path[1], valid)}")
    for table in takers:
        for pair in _EITHER_OR:
            if path[1] in pair:
                table.pop(pair[1 - pair.index(path[1])], None)
        key = _keys_of(table).get(path[1])
        usual = (key.usual or key.default) if key else None
        held = table.get(path[1], usual if isinstance(usual, dict) else {})
        try:
            table[path[1]] = _changed(held, path[2:], parsed)
        except TypeError as error:
            raise UsageError(f"--set {text!r}: {path[1]}: {error}") from None


def _changed(held: Any, path: Sequence[str], value: Any) -> Any:
    """``held``, or each of a list, with ``value`` at ``path`` inside it. Raises TypeError if it has no inside."""
    if not path:
        return value
    if isinstance(held, list):
        return [_changed(one, path, value) for one in held]
    table = {"name": held} if isinstance(held, str) else held
    if not isinstance(table, dict):
        raise TypeError(f"{held!r} is not a table")
    return {**table, path[0]: _changed(table.get(path[0], {}), path[1:], value)}


_EITHER_OR: Final = (("global_batch", "batch_per_rank"), ("epochs", "steps"))


def _keys_of(table: Mapping[str, Any]) -> Mapping[str, Key]:
    kind = table.get("kind")
    known = [name for name in (kind if isinstance(kind, list) else [kind]) if name in kinds()]
    return {key: value for name in known for key, value in kind_of(name).KEYS.items()}


def _expand(table: Mapping[str, Any], where: str) -> Iterable[dict[str, Any]]:
    """All combinations of the listed values."""
    if "kind" not in table:
        raise UsageError(f"{where}: kind: every case needs one of: {', '.join(kinds())}")
    listed = {key: value if isinstance(value, list) else [value] for key, value in table.items()}
    for key, values in listed.items():
        if not values:
            raise UsageError(f"{where}: {key}: an empty list leaves no case")
    for combination in itertools.product(*listed.values()):
        yield dict(zip(listed, combination, strict=True))


def _case(suite: str, values: dict[str, Any], where: str) -> Case:
    kind = values.pop("kind")
    try:
        module = kind_of(kind) if isinstance(kind, str) else None
    except ValueError as error:
        raise UsageError(f"{where}: kind: {error}") from None
    if module is None:
        raise UsageError(f"{where}: kind: must be a word, not {kind!r}")
    _only(values, module.KEYS, where)
    settings = {}
    for name, key in module.KEYS.items():
        if name not in values and key.default is REQUIRED:
            raise UsageError(f"{where}: {name}: a {kind} case needs it")
        settings[name] = _checked(values[name], key, f"{where}: {name}") if name in values else key.default
    try:
        module.check(settings)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    settings = {name: key.usual if settings[name] is None else settings[name] for name, key in module.KEYS.items()}
    return Case(suite, "-".join([kind, *module.identity(settings)]), kind, settings)


def _checked(value: Any, key: Key, where: str) -> Any:
    if key.folder is not None:
        return _choice(value, key.folder, where)
    if (isinstance(value, bool) and bool not in key.types) or not isinstance(value, key.types):
        wanted = " or ".join(sorted({t.__name__ for t in key.types}))
        raise UsageError(f"{where}: must be {wanted}, not {value!r}")
    if isinstance(value, (int, float)) and not abs(value) < LIMIT:
        raise UsageError(f"{where}: {value} is out of range")
    if key.choices and value not in key.choices:
        raise UsageError(f"{where}: unknown {value!r}{registry.nearest(str(value), key.choices)}")
    if key.least is not None and value < key.least:
        raise UsageError(f"{where}: must be at least {key.least}, not {value}")
    return value


def _choice(value: Any, folder: str, where: str) -> dict[str, Any]:
    """A name, or a table of a name and settings, as a table."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise UsageError(f'{where}: must be a name or a table such as {{name = "..."}}, not {value!r}')
    try:
        registry.check_settings(
            registry.find(folder, table["name"]), {k: v for k, v in table.items() if k != "name"}
        )
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return table


@contextmanager
def about(key: str) -> Iterator[None]:
    """Put the name of the key before whatever the body finds wrong with its value."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError, MemoryError, DataError) as error:
        raise ValueError(f"{key}: {error}") from None


def can_be_tried(aggregation: str, ranks: int) -> bool:
    """Whether an aggregation may be simulated before the run, to raise the ValueError that the run would.

    A user's own is not called before the run: nobody knows what else it does. NCCL cannot be simulated, and
    nothing is on more ranks than can be in no time.
    """
    return ":" not in aggregation and aggregation != "nccl" and ranks <= MOST_TRIED


def try_out(choice: Mapping[str, Any], ranks: int) -> None:
    """Simulate an aggregation on that many ranks, if :func:`can_be_tried`."""
    if can_be_tried(choice["name"], ranks):
        aggregate = registry.find("aggregation", choice["name"])
        settings = {key: value for key, value in choice.items() if key != "name"}
        world = simulated(ranks, next(iter(NETWORKS.values())))
        world.run(lambda comm: aggregate(comm, phantom(ranks, "float32"), **settings))


def label(value: Any) -> str:
    """How a value is written in names and tables: ``ring``, ``tree(arity=4)``, ``0.1``."""
    if not isinstance(value, dict):
        return str(value)
    inside = ",".join(f"{k}={label(v)}" for k, v in value.items() if k != "name")
    name = str(value.get("name", ""))
    return f"{name}({inside})" if inside else name


def _named_apart(found: Sequence[Case], source: str) -> Iterable[Case]:
    """The cases in their order; names that several share also tell the settings in which those differ."""
    alike: dict[str, list[Case]] = {}
    for case in found:
        alike.setdefault(case.name, []).append(case)
    differing = {
        name: [key for key in group[0].settings if len({label(case.settings[key]) for case in group}) > 1]
        for name, group in alike.items()
    }
    seen = set()
    for case in found:
        keys = tuple(key for key in differing[case.name] if case.settings[key] is not None)
        name = "-".join([case.name, *(f"{key}={label(case.settings[key])}" for key in keys)])
        if name in seen:
            raise UsageError(f"{source}: the case {name!r} is there twice")
        seen.add(name)
        yield replace(case, name=name, differing=keys)
