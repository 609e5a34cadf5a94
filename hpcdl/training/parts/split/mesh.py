"""Mesh of ranks: data parallelism across model groups, model parallelism within each (Dryden et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Comm
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer
from hpcdl.nn.split.division import LINEAR, SPLITS, Division, divide
from hpcdl.registry import nearest
from hpcdl.training.parts.split.passes import EXCHANGES

MAX_LISTED: Final = 1024
"""Data groups, at most, of the meshes that a message lists."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Division of the ranks into ``data`` model groups of ``model`` ranks, and of the layers within a group.

    One of the two numbers may be left out: it follows from the ranks. With ``pipeline``, each of the groups is so
    many ranks that have consecutive layers, and the layers are whole.

    ``split``: ``model``: convolutions by filters, locally connected layers by rows, fully connected layers by
    features; ``space``: layers of images by rows, fully connected ones by features; ``hybrid``: layers of images
    data-parallel, fully connected ones by features (Krizhevsky 2014). Branches of layers are divided alone, and
    batch normalisation has the statistics of a group's whole batch; in a hybrid they are data-parallel.
    ``linear``: the features are ``outputs`` or ``inputs``. ``exchange``: in a hybrid, the fully connected layers
    get ``all`` images at once, those of one rank in ``turns``, or ``slices`` of all ranks' images
    (:mod:`hpcdl.training.parts.split.passes`).

    ValueError: a name that is none of these, a number below 1, or no number.
    """

    data: int | None = None
    model: int | None = None
    pipeline: int = 1
    split: str = "model"
    linear: str = "outputs"
    exchange: str = "all"

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("data", "model") if getattr(self, name) is not None}
        if not numbers and self.pipeline == 1:
            raise ValueError("give data, the number of groups, model, their ranks, or pipeline, their stages")
        for name, number in (*numbers.items(), ("pipeline", self.pipeline)):
            if number < 1:
                raise ValueError(f"{name}: must be at least 1, not {number}")
        for name, valid in (("split", SPLITS), ("linear", LINEAR), ("exchange", EXCHANGES)):
            if (given := getattr(self, name)) not in valid:
                raise ValueError(f"{name}: unknown {given!r}{nearest(given, valid)}")
        if self.exchange != "all" and self.split != "hybrid":
            raise ValueError(f"exchange: {self.exchange!r} is for split = 'hybrid'")
        for name in ("split", "linear", "exchange") if self.pipeline > 1 else ():
            if (given := getattr(self, name)) != getattr(Mesh, name):
                raise ValueError(f"{name}: {given!r} has no effect: layers of a pipeline are whole; leave it out")

    def __str__(self) -> str:
        given = [
            f"{key.name}={getattr(self, key.name)}"
            for key in fields(self)
            if key.name != "split" and getattr(self, key.name) != key.default
        ]
        return f"{'pipeline' if self.pipeline > 1 else self.split}({','.join(given)})"

    @property
    def _sizes(self) -> str:
        names = ("data", "model", "pipeline") if self.pipeline > 1 else ("data", "model")
        return " ".join(f"{name} {number}" for name in names if (number := getattr(self, name)) is not None)

    def groups(self, ranks: int) -> tuple[int, int]:
        """Return the number of model groups among ``ranks``, and their size.

        ValueError, with sizes that fit, if the ranks cannot be divided so.
        """
        if self.pipeline > 1:
            if self.model not in {None, 1}:
                raise ValueError(f"{self._sizes}: layers of a pipeline are not split; leave out model")
            data, rest = divmod(ranks, self.pipeline)
            if rest or self.data not in {None, data}:
                raise ValueError(f"{ranks} ranks do not fit {self._sizes}; data x pipeline must be {ranks}")
            return data, 1
        data = self.data or ranks // (self.model or 1)
        model = self.model or ranks // data if data else 0
        if data * model != ranks:
            fit = ", ".join(
                f"{number} x {ranks // number}"
                for number in range(1, min(ranks, MAX_LISTED) + 1)
                if ranks % number == 0
            )
            raise ValueError(f"{ranks} ranks do not fit {self._sizes}; data x model can be {fit}")
        return data, model

    def on(self, ranks: int) -> "Mesh | None":
        """Return the mesh with both sizes, equal for equal meshes; None if it divides no layers."""
        data, model = self.groups(ranks)
        if self.pipeline > 1:
            return replace(self, data=data, model=None)
        return replace(self, data=data, model=model) if model > 1 else None

    def divisions(self, layers: Sequence[Layer], shape: Shape, ranks: int) -> tuple[Division, ...]:
        """Return the divisions of ``layers`` of each rank of a model group, with ``ranks`` in all; empty if whole.

        ValueError, naming the layer, for one that cannot be split so.
        """
        _, model = self.groups(ranks)
        of = range(model) if model > 1 else ()
        return tuple(
            divide(layers, shape, split=self.split, linear=self.linear, rank=rank, ranks=model) for rank in of
        )

    def check_divisions(self, layers: Sequence[Layer], shape: Shape, ranks: int) -> None:
        """Raise ValueError for layers that cannot be split so, and for keys without effect on them.

        An exchange in passes needs data-parallel layers before split ones.
        """
        divisions = self.divisions(layers, shape, ranks)
        for name in ("split", "linear") if divisions else ():
            default = getattr(Mesh, name)
            if (given := getattr(self, name)) == default or (name == "split" and self.exchange != "all"):
                continue
            try:
                usual = replace(self, **{name: default}).divisions(layers, shape, ranks)
            except ValueError:
                continue
            if all(a.boundaries == b.boundaries for a, b in zip(divisions, usual, strict=True)):
                raise ValueError(f"{name}: {given!r} splits this network as {default!r} does; leave it out")
        for division in divisions:
            if self.exchange != "all" and not 0 < division.first_split < len(division.parts):
                raise ValueError(
                    f"exchange: {self.exchange!r} needs data-parallel layers before fully connected ones"
                )


@dataclass(frozen=True)
class Place:
    """A rank's place in a mesh, and its two groups."""

    group: int
    """Number of the model group: the position in the data group."""
    data: Comm
    """Ranks with the same parts of the layers, one of each model group."""
    model: Comm
    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each model group, in the order of their parts."""


async def placed(comm: Comm, ranks: int) -> Place:
    """Return this rank's place among model groups of ``ranks`` ranks. Every rank calls, before other programs run.

    Ranks are ordered by host, so that a model group, which exchanges most, lies within a host where possible.
    """
    hosts = (await comm.allgather_words(comm.memory.place(np.empty(0))))[:, 0]
    first = {int(host): rank for rank, host in reversed([*enumerate(hosts)])}
    order = sorted(range(comm.size), key=lambda rank: (first[int(hosts[rank])], rank))
    groups = tuple(tuple(order[begin : begin + ranks]) for begin in range(0, comm.size, ranks))
    group, position = divmod(order.index(comm.rank), ranks)
    model = await comm.split(group, order.index(comm.rank))
    data = await comm.split(position, group)
    return Place(group, data, model, groups)
