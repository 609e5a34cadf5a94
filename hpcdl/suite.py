"""Suites: TOML text to validated, expanded cases. The only place where names become objects."""

from __future__ import annotations

import hashlib
import itertools
import json
import pkgutil
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcdl import cases, registry
from hpcdl.data.dataset import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.journal import Journal

Scalar = str | int | float | bool | None
REQUIRED: Final = object()


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


class Kind(Protocol):
    """A module of :mod:`hpcdl.cases`: how a kind of case is written, checked and run."""

    KEYS: Mapping[str, Key]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError ("key: what is wrong") for settings that cannot run, before anything does."""
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

    @property
    def ranks(self) -> int:
        """Ranks it runs on, real or simulated."""
        return int(self.settings["ranks"])

    @property
    def processes(self) -> int:
        """MPI processes it needs: a simulation needs one."""
        return 1 if self.settings.get("network") else self.ranks

    @property
    def digest(self) -> str:
        """Short hash of everything that defines the case: finished cases are recognised by it."""
        text = json.dumps([self.kind, self.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def module(self) -> Kind:
        """The module of its kind."""
        return kind_of(self.kind)

    def fields(self) -> dict[str, Scalar]:
        """The record's fields that are known before it runs."""
        return {
            "suite": self.suite,
            "case": self.name,
            "kind": self.kind,
            "digest": self.digest,
            "ranks": self.ranks,
            "seed": self.settings.get("seed"),
            **self.module.fields(self.settings),
        }


@dataclass(frozen=True)
class Suite:
    """A suite file."""

    name: str
    question: str
    text: str
    cases: tuple[Case, ...]

    def matching(self, glob: str) -> Suite:
        """Only the cases whose name matches ``glob``; raises UsageError if there is none."""
        chosen = tuple(case for case in self.cases if fnmatch(case.name, glob))
        if not chosen:
            raise UsageError(
                f"--case {glob!r} matches none of {len(self.cases)} cases, such as {self.cases[0].name!r}"
            )
        return Suite(self.name, self.question, self.text, chosen)


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
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    return parse(text, str(path), overrides)


def parse(text: str, source: str, overrides: Sequence[str] = ()) -> Suite:
    """Turn the text of the suite file ``source`` into cases.

    ``overrides`` are the arguments of ``--set``: ``case.KEY=VALUE`` or ``suite.KEY=VALUE``, as in TOML.
    Raises UsageError for anything that could not run to its end: unknown keys and names, values out of range,
    missing data, impossible shapes.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    _only(tables, ("suite", "case"), source)
    head = tables.get("suite", {})
    written = tables.get("case", [])
    if not isinstance(head, dict) or not isinstance(head.get("name"), str):
        raise UsageError(f"{source}: [suite]: name: a suite needs a name")
    if not isinstance(written, list) or not written:
        raise UsageError(f"{source}: there is no [[case]]")
    for override in overrides:
        _override(override, head, written)
    _only(head, ("name", "question"), f"{source}: [suite]")
    found = []
    for number, table in enumerate(written, 1):
        where = f"{source}: [[case]] {number}"
        found += [_case(head["name"], values, varied, where) for values, varied in _expand(table, where)]
    return Suite(head["name"], str(head.get("question", "")), text, tuple(_named_apart(found)))


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
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    if path[0] == "suite":
        head[path[1]] = parsed
        return
    takers = [table for table in written if path[1] in _keys_of(table)]
    if not takers:
        valid = {key for table in written for key in _keys_of(table)}
        raise UsageError(f"--set {text!r}: no case has the key {path[1]!r}{registry.nearest(path[1], valid)}")
    for table in takers:
        for pair in _EITHER_OR:
            if path[1] in pair:
                table.pop(pair[1 - pair.index(path[1])], None)
        inner = table
        for key in path[1:-1]:
            held = inner.get(key, {})
            inner[key] = {"name": held} if isinstance(held, str) else dict(held)
            inner = inner[key]
        inner[path[-1]] = parsed


_EITHER_OR: Final = (("global_batch", "batch_per_rank"), ("epochs", "steps"))


def _keys_of(table: Mapping[str, Any]) -> Mapping[str, Key]:
    kind = table.get("kind")
    return kind_of(kind).KEYS if kind in kinds() else {}


def _expand(table: Any, where: str) -> Iterable[tuple[dict[str, Any], list[str]]]:
    """All combinations of the listed values, and which keys they vary."""
    if not isinstance(table, dict) or "kind" not in table:
        raise UsageError(f"{where}: kind: every case needs one of: {', '.join(kinds())}")
    listed = {key: value if isinstance(value, list) else [value] for key, value in table.items()}
    for key, values in listed.items():
        if not values:
            raise UsageError(f"{where}: {key}: an empty list leaves no case")
    varied = [key for key, values in listed.items() if len(values) > 1]
    for combination in itertools.product(*listed.values()):
        yield dict(zip(listed, combination, strict=True)), varied


def _case(suite: str, values: dict[str, Any], varied: list[str], where: str) -> Case:
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
    words = [kind, *module.identity(settings)]
    words += [f"{name}={label(settings[name])}" for name in varied if name not in _IN_IDENTITY]
    return Case(suite, "-".join(words), kind, settings)


_IN_IDENTITY: Final = (
    *("kind", "model", "dataset", "training", "aggregation", "ranks", "collective", "message_bytes"),
    *("exchange",),
)


def _checked(value: Any, key: Key, where: str) -> Any:
    if key.folder is not None:
        return _choice(value, key.folder, where)
    if (isinstance(value, bool) and bool not in key.types) or not isinstance(value, key.types):
        wanted = " or ".join(sorted({t.__name__ for t in key.types}))
        raise UsageError(f"{where}: must be {wanted}, not {value!r}")
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
    except (ValueError, TypeError, DataError) as error:
        raise ValueError(f"{key}: {error}") from None


def label(value: Any) -> str:
    """How a value is written in names and tables: ``ring``, ``tree(arity=4)``, ``0.1``."""
    if not isinstance(value, dict):
        return str(value)
    inside = ",".join(f"{k}={label(v)}" for k, v in value.items() if k != "name")
    return f"{value['name']}({inside})" if inside else str(value["name"])


def _named_apart(found: Sequence[Case]) -> Iterable[Case]:
    seen: dict[str, str] = {}
    for case in found:
        if case.name in seen:
            raise UsageError(f"the suite {case.suite!r} contains the case {case.name!r} twice")
        seen[case.name] = case.digest
    return found
