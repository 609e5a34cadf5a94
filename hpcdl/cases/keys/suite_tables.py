"""Tables of a suite file: arguments of ``--set`` put into them, and lists expanded to their product."""

import itertools
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hpcdl import cases, registry
from hpcdl.cases.keys.key import Choice, Key, Role, key, keys
from hpcdl.registry import nearest
from hpcdl.trace.files import parse_toml

FOLDER: Final = Path(__file__).parents[2] / "suites"
"""In a checkout a link to the folder ``suites`` at its top; in an installed package a copy of its files."""


def suites() -> dict[str, Path]:
    """Return the suite files by name, in the order of their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def located(given: Path) -> Path:
    """Return the suite file that a user means by the name of a shipped suite or by a path; the name wins.

    Raises ValueError, with the nearest valid name, if there is neither.
    """
    shipped = suites()
    if str(given) not in shipped and not given.exists():
        hint = nearest(given.stem, shipped, f"the current folder is {Path.cwd()}; hpcdl list suites has the names")
        raise ValueError(f"{given}: no such suite file, and no suite of that name{hint}")
    return shipped.get(str(given), given)


MAX_CASES: Final = 10_000
"""Cases of a suite, at most."""
EITHER_OR: Final = (("global_batch", "batch_per_rank"), ("epochs", "steps"))
"""Keys of which a training has one of two."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """Keys of every kind of case, which do not change the measurement."""

    timeout_seconds: float | None = key(None, least=1, role="sampling")


@cache
def kinds() -> tuple[str, ...]:
    """Return all kinds of case."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(cases.__path__) if not entry.ispkg))


def module_of(kind: str) -> Any:
    """Return the module of a kind. Raises ValueError for an unknown one."""
    if kind not in kinds():
        raise ValueError(f"unknown {kind!r}{registry.nearest(kind, kinds())}")
    return import_module(f"hpcdl.cases.{kind}")


@cache
def _declared() -> dict[str, Key]:
    """Return the keys of all kinds, by name; those of training come first."""
    modules = [module_of(kind) for kind in sorted(kinds(), key=lambda kind: kind != "train")]
    every = {
        name: field.metadata["key"] for module in reversed(modules) for name, field in keys(module.SPEC).items()
    }
    ordered = dict.fromkeys(name for module in modules for name in keys(module.SPEC))
    return {name: every[name] for name in ordered}


def role_of(name: str) -> Role:
    """Return the role of a key; that of a key which no kind has is ``condition``."""
    return _declared().get(name, Key()).role


def column_of(name: str) -> str:
    """Return the column that states a key; the key itself if none does."""
    return _declared().get(name, Key()).column or name


@cache
def columns_with(role: Role) -> tuple[str, ...]:
    """Return the columns that state the keys with a role, in their order."""
    chosen = [(key.column or name, key.also) for name, key in _declared().items() if key.role == role]
    return tuple(dict.fromkeys(column for columns in chosen for column in columns if column))


def check_keys(table: Mapping[str, Any], valid: Iterable[str], where: str) -> None:
    """Raise ValueError for a key that is not among the valid ones."""
    for name in table:
        if name not in valid:
            raise ValueError(f"{where}: {name}: unknown key{registry.nearest(name, valid)}")


def override(text: str, head: dict[str, Any], written: list[dict[str, Any]]) -> None:
    """Put one argument of ``--set`` into the tables [suite] and [[case]]. Raises ValueError."""
    target, equals, value = text.partition("=")
    path = target.strip().split(".")
    if not equals or len(path) < 2 or path[0] not in ("case", "suite"):
        raise ValueError(f"--set {text!r}: write case.KEY=VALUE or suite.KEY=VALUE")
    try:
        parsed = parse_toml(f"value = {value}", text)["value"]
    except ValueError:
        parsed = value.strip()  # a bare word is a string
    if path[0] == "suite":
        head[path[1]] = parsed
        return
    takers = [table for table in written if path[1] in ("kind", *_keys_of(table))]
    if not takers:
        valid = {"kind", *(name for table in written for name in _keys_of(table))}
        raise ValueError(f"--set {text!r}: no case has the key {path[1]!r}{registry.nearest(path[1], valid)}")
    for table in takers:
        others = [pair[1 - pair.index(path[1])] for pair in EITHER_OR if path[1] in pair]
        further = table.get("full")
        for name in others:
            table.pop(name, None)
        if isinstance(further, dict):
            table["full"] = {name: values for name, values in further.items() if name not in (path[1], *others)}
        field = _keys_of(table).get(path[1])
        default = field.default.name if field is not None and isinstance(field.default, Choice) else {}
        try:
            table[path[1]] = _changed(table.get(path[1], default), path[2:], parsed)
        except TypeError as error:
            raise ValueError(f"--set {text!r}: {path[1]}: {error}") from None


def _changed(held: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    if isinstance(held, list):
        return [_changed(entry, path, value) for entry in held]
    table = {"name": held} if isinstance(held, str) else held
    if not isinstance(table, dict):
        raise TypeError(f"{held!r} is not a table")
    return {**table, path[0]: _changed(table.get(path[0], {}), path[1:], value)}


def _keys_of(table: Mapping[str, Any]) -> dict[str, Field[Any]]:
    kind = table.get("kind")
    named = [name for name in (kind if isinstance(kind, list) else [kind]) if name in kinds()]
    return keys(Common) | {name: field for each in named for name, field in keys(module_of(each).SPEC).items()}


def expanded(table: Mapping[str, Any], where: str) -> Iterable[tuple[dict[str, Any], bool]]:
    """Yield all combinations of the listed values, those of settings in tables too; True: only --full runs it.

    ``full = true`` marks all, ``full = {KEY = VALUES}`` those with a further value. Raises ValueError.
    """
    table = dict(table)
    full = table.pop("full", False)
    further = full if isinstance(full, dict) else {}
    if full is not True and full is not False and not isinstance(full, dict):
        raise ValueError(f"{where}: full: must be true, or a table of further values, not {full!r}")
    check_keys(further, table, f"{where}: full")
    if "kind" not in table:
        raise ValueError(f"{where}: kind: every case needs one of: {', '.join(kinds())}")
    fields = _keys_of(table)
    listed = {
        name: [
            (spread, only_full)
            for values, only_full in ((value, full is True), (further.get(name, []), True))
            for entry in (values if isinstance(values, list) else [values])
            for spread in _spread(entry, fields.get(name))
        ]
        for name, value in table.items()
    }
    for name, values in listed.items():
        if not values:
            raise ValueError(f"{where}: {name}: an empty list leaves no case")
    count = math.prod(len(values) for values in listed.values())
    if count > MAX_CASES:
        raise ValueError(f"{where}: its lists make {count} cases; a suite has at most {MAX_CASES}")
    for combination in itertools.product(*listed.values()):
        yield (
            {name: value for name, (value, _) in zip(listed, combination, strict=True)},
            any(only_full for _, only_full in combination),
        )


def _spread(value: Any, field: Field[Any] | None) -> list[Any]:
    """Return ``value``, or the tables that a table stands for in which settings that take no list have one."""
    if not isinstance(value, dict) or field is None or not isinstance(value.get("name", ""), str):
        return [value]
    limits = field.metadata["key"]
    try:
        made = [limits.table or registry.find(limits.folder, value["name"]), *filter(None, [limits.around])]
    except (KeyError, ValueError):  # its check names what is wrong
        return [value]
    lists = {
        name: values
        for name, values in value.items()
        if isinstance(values, list) and any(registry.is_scalar(thing, name) for thing in made)
    }
    return [
        {**value, **dict(zip(lists, combination, strict=True))}
        for combination in itertools.product(*lists.values())
    ]
