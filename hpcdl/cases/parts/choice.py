"""Choices of a suite: a name of a registry folder, with settings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl import registry
from hpcdl.analysis.labels import label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Choice:
    """A name and the settings that a suite gives with it; as text ``tree(arity=4)``."""

    folder: str
    """Folder of the registry: see :data:`hpcdl.registry.FOLDERS`."""
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: str, value: object) -> Choice:
        """Return the choice that a suite writes as a name or a table. Raises ValueError if it is neither."""
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            shown = registry.shortened(value)
            raise ValueError(f'must be a name or a table such as {{name = "..."}}, not {shown}')  # noqa: TRY004
        return cls(folder, table["name"], {key: one for key, one in table.items() if key != "name"})

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return label(self.written)

    @property
    def written(self) -> str | dict[str, Any]:
        """The choice as a suite writes it: the name alone, or a table."""
        return {"name": self.name, **self.settings} if self.settings else self.name

    def find(self) -> Callable[..., Any]:
        """Return the object of that name. Raises ValueError if there is none."""
        return registry.find(self.folder, self.name)

    def check(self, around: type | None = None) -> None:
        """Raise ValueError for an unknown name, and for settings that neither the object nor ``around`` takes."""
        registry.check_settings(self.find(), self.settings, around)

    def split(self, around: type) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the object's own settings, and those of ``around``."""
        theirs = registry.settings_of(around)
        own = {name: value for name, value in self.settings.items() if name not in theirs}
        return own, {name: value for name, value in self.settings.items() if name in theirs}

    @property
    def in_full(self) -> dict[str, Any]:
        """All settings, defaults included. Raises ValueError if one is missing."""
        return registry.in_full(self.find(), self.settings)

    def bind(self) -> partial[Any]:
        """Return the object with its settings bound."""
        return partial(self.find(), **self.settings)

    def make(self, *arguments: Any) -> Any:
        """Call the object with ``arguments`` and its settings; return the result."""
        return self.find()(*arguments, **self.settings)


def plain(value: Any) -> Any:
    """Return a setting as a suite writes it: a scalar, a list or a table."""
    if isinstance(value, Choice):
        return value.written
    if is_dataclass(value):
        every = {one.name: (getattr(value, one.name), one.default) for one in fields(value)}
        return {name: plain(held) for name, (held, default) in every.items() if held != default}
    return list(value) if isinstance(value, tuple) else value
