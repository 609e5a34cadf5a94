"""Keys of a kind of case: the fields of its frozen dataclass, and the values that a suite may give."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from typing import Any, Final, Literal, TypeVar

from hpcdl import registry
from hpcdl.data.parts.dataset import DataError, Dataset
from hpcdl.data.parts.splits import with_validation
from hpcdl.fabric.network import NETWORKS, Network, Site
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
        return cls(folder, table["name"], {key: setting for key, setting in table.items() if key != "name"})

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return registry.label(self.written)

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
        every = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: plain(held) for name, (held, default) in every.items() if held != default}
    return list(value) if isinstance(value, tuple) else value


def opened(dataset: Choice, validation: float = 0.0) -> Dataset:
    """Return a dataset; ``validation``: share of the training images that is held out."""
    whole = _opened(dataset)
    return with_validation(whole, validation) if validation else whole


@cache
def _opened(dataset: Choice) -> Dataset:
    settings = {
        key: tuple(setting) if isinstance(setting, list) else setting for key, setting in dataset.settings.items()
    }
    return dataset.find()(**settings)  # type: ignore[no-any-return]


def cluster(network: str, ranks_per_host: int, topology: Choice | None) -> Network:
    """Return a simulated cluster. Raises ValueError for settings of the topology out of range."""
    preset = NETWORKS[network].on(ranks_per_host)
    return preset if topology is None else with_topology(preset, topology)


def with_topology(network: Network, topology: Choice) -> Network:
    """Return the network with a topology. Raises ValueError for a wrong name or setting."""
    topology.check(Site)
    _, site = topology.split(Site)
    return replace(network, topology=topology.find()(**topology.in_full), site=Site(**site))


def varies(spec: Any) -> bool:
    """Return True if compute times or pauses of a case are random, so that each launch draws its own."""
    slow = getattr(spec, "straggler", None)
    return bool(getattr(spec, "jitter", 0.0)) or (slow is not None and slow.varies)


def architecture(
    model: Choice, dataset: Choice | None, given: Shape | None = None
) -> tuple[Shape, Sequence[Layer]]:
    """Return the shape of images and the layers; without a dataset those for which the model is published.

    ``given``: another shape than the published one.

    Raises ValueError for a model that is not published for one size of images.
    """
    if dataset is not None:
        data = opened(dataset)
        return data.shape, model.make(data.shape, data.classes)
    shape, classes = (
        parameter.default for parameter in list(inspect.signature(model.find()).parameters.values())[:2]
    )
    if shape is inspect.Parameter.empty or classes is inspect.Parameter.empty:
        raise ValueError(f"{model.name!r} is made for no size of images; name a dataset")
    if given and (len(given) != len(shape) or min(given) < 1):
        raise ValueError(f"{'x'.join(map(str, given))} is no shape of {len(shape)} sides, such as {shape}")
    return given or shape, model.make(given or shape, classes)


Spec = TypeVar("Spec")

MAX_RANKS: Final = 1 << 17
"""Ranks of a case, real or simulated, at most: more than the largest machines have processors."""
MAX_REPETITIONS: Final = 10**6
"""Repetitions of an operation, at most: their times are kept in memory."""
MAX_STEPS: Final = 10**7
"""Steps of a training, at most: ten times the ImageNet trainings of the literature."""
MAX_THREADS: Final = 1024

FAULTS: Final = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError),
    DataError,
)
"""Exceptions of an object that is made of a suite's values, a user's own too."""

Role = Literal["problem", "method", "condition", "machine", "scale", "sampling"]
"""Part of a key in comparisons of cases:

- ``problem``: the computation. Cases of one table agree in it.
- ``method``: the way of computing it. Rows of a table are named after it.
- ``condition``: changes the measured numbers; cases of one table agree in it, and the report names it.
- ``machine``: a condition that describes a machine, which a prediction replaces.
- ``scale``: ranks, batch and seed, by which cases of one method differ.
- ``sampling``: how often and when something is measured, which changes no time.
"""


@dataclass(frozen=True)
class Key:
    """Role of a key, and limits of its values."""

    role: Role = "condition"
    column: str = ""
    """Column of the record that states it, if its name is another."""
    also: str = ""
    """A second column that states it."""
    folder: str | None = None
    """Folder of the registry that has the value, a :class:`Choice`."""
    around: type | None = None
    """Class whose fields are settings of every choice."""
    table: type | None = None
    """Class of the value, which a suite writes as a table of its fields."""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    """Exclusive lower bound."""
    most: float | None = None


def key(default: Any = MISSING, **limits: Any) -> Any:
    """Return a field of a spec; ``limits`` are fields of :class:`Key`. Without a default a suite must give it."""
    return field(default=default, metadata={"key": Key(**limits)})


_SIZE: Final = re.compile(r"(\d{1,9}) ?([KMG])(?:i?B)?")
"""Bytes with a unit, a power of 1024, as OSU's benchmarks and nccl-tests take them."""


def size(text: str) -> int | None:
    """Return the bytes of a size with a unit, such as "64K"; None for another text."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) << 10 * (1 + "KMG".index(match[2])) if match else None


def keys(spec: type) -> dict[str, Field[Any]]:
    """Return the keys of a spec, in their order."""
    return {field.name: field for field in fields(spec)}


def read(field: Field[Any], value: Any) -> tuple[Any, str | None]:
    """Return ``value`` as the field holds it, and a line if the key cannot have it.

    A wrong value comes back as far as it could be read.
    """
    try:
        value = _converted(field, value)
        if isinstance(value, Choice) and value.folder in registry.FOLDERS:
            value.check(field.metadata["key"].around)
    except FAULTS as error:
        return value, str(error) or type(error).__name__
    return value, None


def _converted(field: Field[Any], value: Any) -> Any:
    """Return ``value`` as the field holds it; a choice is not looked up."""
    limits: Key = field.metadata["key"]
    if value == "none" and field.default is None and (limits.folder or limits.table):
        return None  # as without the key, for lists
    if limits.folder is not None:
        return Choice.of(limits.folder, value)
    if limits.table is not None:
        table = limits.table
        if not isinstance(value, dict):
            raise TypeError(f"must be a table, as {{key = value}}, not {registry.shortened(value)}")
        registry.check_settings(table, value)
        full = registry.in_full(table, value)
        return table(
            **{name: tuple(setting) if isinstance(setting, list) else setting for name, setting in full.items()}
        )
    if field.name.endswith("_bytes") and isinstance(value, str) and (in_bytes := size(value)) is not None:
        value = in_bytes
    _check_scalar(value, limits, getattr(field.type, "__name__", str(field.type)))
    return value


def _check_scalar(value: Any, limits: Key, annotation: str) -> None:
    types = {kind for word in annotation.split(" | ") for kind in registry.TYPES.get(word, ())}
    if (isinstance(value, bool) and bool not in types) or not isinstance(value, tuple(types)):
        wanted = " or ".join(sorted(kind.__name__ for kind in types))
        if isinstance(value, str) and int in types and re.fullmatch(r"[\d ,]*\d,[\d ,]*", value):
            wanted += f", or a list, [{value}]"
        raise TypeError(f"must be {wanted}, not {registry.shortened(value)}")
    if isinstance(value, (int, float)) and not abs(value) < registry.MAX_INTEGER:
        raise ValueError(f"{registry.shortened(value)} is out of range")
    if limits.choices and value not in limits.choices:
        raise ValueError(f"unknown {registry.shortened(value)}{registry.nearest(str(value), limits.choices)}")
    for bound, fits, words in (
        (limits.least, operator.ge, "at least"),
        (limits.above, operator.gt, "more than"),
        (limits.most, operator.le, "at most"),
    ):
        if isinstance(value, (int, float)) and bound is not None and not fits(value, bound):
            raise ValueError(f"must be {words} {bound}, not {value}")


def given(spec: Any) -> dict[str, Any]:
    """Return the settings of a spec that differ from their defaults, as a suite writes them."""
    return {
        name: plain(getattr(spec, name))
        for name, field in keys(type(spec)).items()
        if getattr(spec, name) != field.default
    }


def restored(kind: type[Spec], settings: Mapping[str, Any]) -> Spec:
    """Return the spec of which ``settings`` are :func:`given`; names are not looked up.

    Raises ValueError, led by the key, for one that the kind does not have, and for a value that it cannot have.
    """
    values = {}
    for name in settings:
        if name not in keys(kind):
            raise ValueError(f"{name}: unknown key{registry.nearest(name, keys(kind))}")
    for name, declared in keys(kind).items():
        with about(name):
            if name in settings:
                values[name] = _converted(declared, settings[name])
            elif declared.default is MISSING:
                raise ValueError("is missing")
    return kind(**values)


@contextmanager
def about(name: str) -> Iterator[None]:
    """Put the name of a key before the message of an exception in the body, which becomes a ValueError."""
    try:
        yield
    except FAULTS as error:
        raise ValueError(f"{name}: {str(error) or type(error).__name__}") from None
