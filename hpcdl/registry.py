"""Names to objects: a folder is its own registry.

``hpcdl/aggregation/ring.py`` offers its function ``ring``; in ``hpcdl/optim`` classes are offered, letter case
and underscores apart: ``sgd.py`` offers ``SGD``. Drop a file in and it can be named in a suite.
``mypackage.mymodule:my_ring`` names a user's own.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FOLDERS: Final = {
    "aggregation": "hpcdl.aggregation",
    "backends": "hpcdl.nn.kernels",
    "compression": "hpcdl.compression",
    "datasets": "hpcdl.data",
    "models": "hpcdl.models",
    "optim": "hpcdl.optim",
    "training": "hpcdl.training",
}
"""What can be named, and where it lives."""

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "tuple": (list,),
}


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint: ``; did you mean 'ring'?``, or what there is when nothing is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names)}"


@cache
def names(what: str) -> tuple[str, ...]:
    """All names of the folder ``what``, sorted."""
    package = importlib.import_module(FOLDERS[what])
    modules = (entry.name for entry in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name for name in modules if _offer(f"{FOLDERS[what]}.{name}") is not None))


def find(what: str, name: str) -> Callable[..., Any]:
    """The object called ``name`` in the folder ``what``, or a user's ``module:object``.

    Raises ValueError with one line that gives the nearest valid name.
    """
    if ":" in name:
        return _users_own(what, name)
    found = _offer(f"{FOLDERS[what]}.{name}") if name.isidentifier() else None
    if found is None:
        raise ValueError(f"unknown {name!r}{nearest(name, names(what))}")
    return found


def says(what: str, name: str, thing: str) -> Any:
    """What the module of ``name`` offers as ``thing`` besides the object itself, None if it does not."""
    return getattr(importlib.import_module(find(what, name).__module__), thing, None)


def _users_own(what: str, name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        thing: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # noqa: BLE001 - it is the user's module, and may do anything
        raise ValueError(f"cannot load {name!r}: {type(error).__name__}: {error}") from None
    if not callable(thing):
        raise ValueError(f"{name!r} is a {type(thing).__name__}, which cannot be called")  # noqa: TRY004
    if what in {"aggregation", "training"} and not inspect.iscoroutinefunction(thing):
        raise ValueError(f"{name!r} is not an async function")
    return thing


def _offer(path: str) -> Callable[..., Any] | None:
    """What the module at ``path`` offers under its own name, None if nothing or no such module."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and path.startswith(error.name):
            return None
        raise
    wanted = path.rpartition(".")[2].replace("_", "")
    is_offer = inspect.isclass if path.startswith(FOLDERS["optim"]) else inspect.isfunction
    for name, thing in vars(module).items():
        if is_offer(thing) and thing.__module__ == path and name.lower().replace("_", "") == wanted:
            return thing  # type: ignore[no-any-return]
    return None


def settings_of(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a suite may set: the keyword-only parameters."""
    parameters = inspect.signature(thing).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def in_full(thing: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of ``thing``: those given, and the defaults of the others.

    ValueError: one that has no default is not given.
    """
    full = {name: settings.get(name, parameter.default) for name, parameter in settings_of(thing).items()}
    for name, value in full.items():
        if value is inspect.Parameter.empty:
            raise ValueError(f"needs a setting {name!r}")
    return full


def check_settings(thing: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for a setting that ``thing`` does not have, or of another type."""
    valid = settings_of(thing)
    for name, value in settings.items():
        if name not in valid:
            hint = nearest(name, valid) if valid else "; it has none"
            raise ValueError(f"unknown setting {name!r}{hint}")
        annotation = valid[name].annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        allowed = [part.strip() for part in text.split("|")]
        kinds = [_TYPES[part.partition("[")[0]] for part in allowed if part.partition("[")[0] in _TYPES]
        if kinds and (not isinstance(value, tuple(t for kind in kinds for t in kind)) or _lax(value, allowed)):
            raise ValueError(f"setting {name!r} must be {' or '.join(allowed)}, not {value!r}")


def _lax(value: Any, allowed: list[str]) -> bool:
    """Whether ``value`` passes as a number only because True is 1."""
    return isinstance(value, bool) and "bool" not in allowed


def summary(thing: Callable[..., Any]) -> str:
    """First line of the docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]
