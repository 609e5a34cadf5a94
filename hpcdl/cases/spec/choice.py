"""Datasets and models that a case names, as objects."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hpcdl import registry
from hpcdl.analysis.run.record_fields import label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcdl.data.parts.dataset import Dataset
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


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


@cache
def opened(dataset: Choice) -> Dataset:
    """Return a dataset, each once per process: cases share it."""
    settings = {key: tuple(one) if isinstance(one, list) else one for key, one in dataset.settings.items()}
    return dataset.find()(**settings)  # type: ignore[no-any-return]


def architecture(model: Choice, dataset: Choice | None) -> tuple[Shape, Sequence[Layer]]:
    """Return the shape of images and the layers; without a dataset those for which the model is published.

    Raises ValueError for a model that is not published for one size of images.
    """
    if dataset is not None:
        data = opened(dataset)
        return data.shape, model.make(data.shape, data.classes)
    shape, classes = (one.default for one in list(inspect.signature(model.find()).parameters.values())[:2])
    if shape is inspect.Parameter.empty or classes is inspect.Parameter.empty:
        raise ValueError(f"{model.name!r} is made for no size of images; name a dataset")
    return shape, model.make(shape, classes)


def check_layers(layers: Sequence[Layer], shape: Shape) -> Shape:
    """Return the shape of the outputs for images of ``shape``. Raises ValueError for layers that do not fit."""
    for layer in layers:
        layer.declare(shape)
        shape = layer.output(shape)
    return shape
