"""Find objects by name: a folder is its own registry.

``hpcdl/aggregation/ring.py`` offers its function ``ring``. A file in ``hpcdl/optim`` or ``hpcdl/compression``
offers a class; letter case and underscores do not matter: ``sgd.py`` offers ``SGD``. A file of a family, such as
``hpcdl/models/imagenet.py``, lists what it offers in ``OFFERS``, and may list ``TRAITS`` so. A new file needs no
registration.

``mypackage.mymodule:my_ring`` names an object of the user. Its module is searched on Python's path, then in the
folder of the suite. It is imported only if the user typed the name, in a suite or an option: a file of a run is
never trusted with code.
"""

import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

Traits = TypeVar("Traits")
Offer: TypeAlias = Callable[..., Any]
"""A class or a function that a suite names, with its settings as keyword-only parameters."""
Settings: TypeAlias = Mapping[str, object]

FOLDERS: Final = {
    "aggregation": "hpcdl.aggregation",
    "backends": "hpcdl.nn.kernels",
    "codes": "hpcdl.compression.codes",
    "compression": "hpcdl.compression",
    "datasets": "hpcdl.data",
    "models": "hpcdl.models",
    "optim": "hpcdl.optim",
    "topologies": "hpcdl.fabric.topologies",
    "training": "hpcdl.training",
}
"""Package of each kind of name."""

SHORT: Final = 80
"""Largest number of characters of a value in a message."""
SIMILAR: Final = 0.65
"""Least similarity of a name to the one that a message suggests, as difflib defines it."""
MAX_INTEGER: Final = 1 << 63
"""Upper limit of numbers: traces have 64 bits."""
_signature = cache(inspect.signature)
_suite_folder: str | None = None
_typed: Final = set[str]()

TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "tuple": (list,),
    "dict": (dict,),
}
"""Types of TOML, by annotation."""


def nearest(name: str, valid: Iterable[str], where: str = "") -> str:
    """Return a hint: ``; did you mean 'ring'?``; if none is similar ``where`` to look, else all valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=SIMILAR) if len(name.lstrip("-")) > 1 else []
    long = [one for one in names if min(len(name), len(one)) > 2]
    close = close or [one for one in long if one.startswith(name) or name.startswith(one)][:1]
    return f"; did you mean {close[0]!r}?" if close else f"; {where or 'valid names: ' + ', '.join(names)}"


def forget() -> None:
    """Look again at the folders: a file was added or has gone."""
    for function in (names, _offers, _offer):
        function.cache_clear()


@cache
def names(folder: str) -> tuple[str, ...]:
    """Return all names of ``folder``, sorted."""
    return tuple(sorted(_offers(folder)))


def find(folder: str, name: str) -> Offer:
    """Return the object ``name`` of ``folder``, or a user's ``module:object``.

    Raises ValueError with one line that has the nearest valid name.
    """
    if ":" in name:
        return _users_own(folder, name)
    offer = _offer(f"{FOLDERS[folder]}.{name}") if name.isidentifier() else None
    offer = offer or _offers(folder).get(name)
    if offer is None:
        raise ValueError(f"unknown {name!r}{nearest(name, names(folder))}")
    return offer


def traits(folder: str, name: str, kind: type[Traits]) -> Traits:
    """Return ``TRAITS`` of the module of ``name``, a family's by name; the defaults ``kind()`` if it has none.

    Raises ValueError for an unknown name, and for ``TRAITS`` of another type.
    """
    module = sys.modules[find(folder, name).__module__]
    declared = getattr(module, "TRAITS", None)
    if hasattr(module, "OFFERS") and isinstance(declared, dict):
        declared = declared.get(name)
    if declared is None:
        return kind()
    if not isinstance(declared, kind):
        raise ValueError(f"{name!r}: TRAITS is of type {type(declared).__name__}, not {kind.__name__}")  # noqa: TRY004
    return declared


def title(folder: str, name: str) -> str:
    """Return the name of an object in the literature: the words of its docstring before a colon or " for replays".

    Empty if the docstring does not begin so. Raises ValueError for an unknown name.
    """
    words = re.match(r"([^.:`]+?)(?:: | for replays )", find(folder, name).__doc__ or "")
    return words[1] if words else ""


def trust(typed: object, folder: Path) -> None:
    """Let the names with a colon in ``typed`` be imported: a name, or a table or list of a suite or option.

    Their modules are searched in ``folder`` too, last.
    """
    global _suite_folder  # noqa: PLW0603 - a process has one suite
    _suite_folder = str(folder.absolute())
    _typed.update(leaf for leaf in _leaves(typed) if isinstance(leaf, str) and ":" in leaf)


def _users_own(folder: str, name: str) -> Offer:
    if name not in _typed:
        raise ValueError(f"{shortened(name)} is outside the package, which only a suite or an option may name")
    module, _, attribute = name.partition(":")
    if _suite_folder is not None and _suite_folder not in sys.path:
        sys.path.append(_suite_folder)  # permanent: the user's module may import others later
    try:
        thing: Offer = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # noqa: BLE001 - a user's module may raise any exception
        raise ValueError(f"cannot load {name!r}: {type(error).__name__}: {error}") from None
    if not callable(thing):
        raise ValueError(f"{name!r} is a {type(thing).__name__}, which cannot be called")  # noqa: TRY004
    if folder in {"aggregation", "training"} and not inspect.iscoroutinefunction(thing):
        raise ValueError(f"{name!r} is not an async function")
    return thing


@cache
def _offers(folder: str) -> dict[str, Offer]:
    """Return all objects of ``folder``, by name. Imports all of its modules."""
    package, offers = importlib.import_module(FOLDERS[folder]), {}
    for entry in pkgutil.iter_modules(package.__path__):
        path = f"{package.__name__}.{entry.name}"
        if (offer := _offer(path)) is not None:
            offers[entry.name] = offer
        offers |= getattr(sys.modules.get(path), "OFFERS", {})
    return offers


@cache
def _offer(path: str) -> Offer | None:
    """Return the object that the module ``path`` offers; None if there is no such module or object."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and path.startswith(error.name):
            return None
        raise
    if hasattr(module, "OFFERS"):
        return None
    wanted = path.rpartition(".")[2].replace("_", "")
    offers_class = path.startswith((FOLDERS["optim"], FOLDERS["compression"], FOLDERS["topologies"]))
    is_offer = inspect.isclass if offers_class else inspect.isfunction
    for name, thing in vars(module).items():
        if is_offer(thing) and thing.__module__ == path and name.lower().replace("_", "") == wanted:
            return thing  # type: ignore[no-any-return]
    return None


def settings_of(thing: Offer) -> dict[str, inspect.Parameter]:
    """Return the settings of ``thing``: its keyword-only parameters."""
    return {name: p for name, p in _signature(thing).parameters.items() if p.kind is p.KEYWORD_ONLY}


def in_full(thing: Offer, settings: Settings) -> dict[str, Any]:
    """Return all settings of ``thing``: the given ones, and the defaults of the others.

    Raises ValueError if a setting without default is missing.
    """
    full = {name: settings.get(name, parameter.default) for name, parameter in settings_of(thing).items()}
    for name, value in full.items():
        if value is inspect.Parameter.empty:
            raise ValueError(f"needs a setting {name!r}")
    return full


def check_settings(thing: Offer, settings: Settings, around: Offer | None = None) -> None:
    """Raise ValueError for an unknown setting, a value of a wrong type, or a number out of range.

    ``around``: object whose settings are valid too.
    """
    valid = {**settings_of(thing), **(settings_of(around) if around is not None else {})}
    for name, value in settings.items():
        if name not in valid:
            hint = _owners(thing, name) or (nearest(name, valid) if valid else "; it has none")
            raise ValueError(f"unknown setting {name!r}{hint}")
        allowed, kinds = _allowed(valid[name])
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and "bool" not in allowed)):
            raise ValueError(f"setting {name!r} must be {' or '.join(allowed)}, not {shortened(value)}")
        if any(isinstance(leaf, (int, float)) and not abs(leaf) < MAX_INTEGER for leaf in _leaves(value)):
            raise ValueError(f"setting {name!r}: {shortened(value)} is out of range")


def _owners(thing: Offer, setting: str) -> str:
    package = thing.__module__.rpartition(".")[0]
    folders = [folder for folder, path in FOLDERS.items() if path == package]
    every = [(folder, name) for folder in folders for name in names(folder)]
    owners = [repr(name) for folder, name in every if setting in settings_of(find(folder, name))]
    return f"; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it" if owners else ""


def _allowed(setting: inspect.Parameter) -> tuple[list[str], tuple[type, ...]]:
    """Return the annotations of a setting, and their types in TOML; no types if an annotation is unknown."""
    allowed = [part.strip() for part in annotation(setting).split("|")]
    return allowed, tuple(kind for part in allowed for kind in TYPES.get(part.partition("[")[0], ()))


def annotation(setting: inspect.Parameter) -> str:
    """Return the annotation of a setting as in its source."""
    given = setting.annotation
    return given if isinstance(given, str) else inspect.formatannotation(given)


def is_scalar(thing: Offer, name: str) -> bool:
    """Return True if the setting ``name`` of ``thing`` takes no list."""
    setting = settings_of(thing).get(name)
    kinds = _allowed(setting)[1] if setting is not None else ()
    return bool(kinds) and list not in kinds


def _leaves(value: object) -> Iterator[object]:
    """Yield the values in tables and lists of a suite, however deep; any other value itself."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list, tuple)):
            waiting += value.values() if isinstance(value, dict) else value
        else:
            yield value


def shortened(value: object) -> str:
    """Return the value in Python's notation, without the middle if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python limits conversion to 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= SHORT else f"{text[: SHORT // 2]}...{text[-SHORT // 4 :]}"


def summary(thing: Offer) -> str:
    """Return the first line of the docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def label(value: object) -> str:
    """Return how a value is written in names and tables: ``ring``, ``tree(arity=4)``, ``0.1``."""
    if not isinstance(value, dict):
        return str(value)
    inside = ",".join(f"{key}={label(inner)}" for key, inner in value.items() if key != "name")
    name = str(value.get("name", ""))
    return f"{name}({inside})" if inside else name


def parts(label: str) -> tuple[str, dict[str, str]]:
    """Return the name and the text of each setting; a setting may be a name with settings itself.

    Text of another form is a name without settings.
    """
    name, opened, inside = label.partition("(")
    if not opened or not inside.endswith(")"):
        return label, {}
    settings = [setting.partition("=") for setting in _split(inside[:-1])]
    if not all(equals for _, equals, _ in settings):
        return label, {}
    return name, {key.strip(): value for key, _, value in settings}


def _split(text: str) -> list[str]:
    pieces, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces
