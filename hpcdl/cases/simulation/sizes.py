"""Backend of sizes: layers give arrays of their shapes and compute nothing, as on PyTorch's meta device."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.fabric.vectors import phantom
from hpcdl.nn.backend import Backend, backend
from hpcdl.nn.geometry import Shape, storage_dtype
from hpcdl.nn.layer import Layer, Site
from hpcdl.nn.split.part import Part


@cache
def phantoms(shape: Shape, dtype: str) -> Array:
    """Return a size-only array, :func:`hpcdl.fabric.vectors.phantom`."""
    return phantom(math.prod(shape), dtype).reshape(shape)


class Zeros:
    """Arrays of zeros that share one memory, of the longest so far; they must not be written to."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)

    def __call__(self, shape: Shape, dtype: str) -> Array:
        """Return an array of ``shape``."""
        if (size := math.prod(shape) * np.dtype(dtype).itemsize) > self._memory.size:
            self._memory = np.zeros(size, np.uint8)
        return self._memory[:size].view(dtype).reshape(shape)


def sizes(
    zeros: Callable[[int, str], Array] = phantom,
    activations: Callable[[Shape, str], Array] = phantoms,
    draw: Callable[[int], Array] | None = None,
) -> Backend:
    """Return a backend without arithmetic, whose backward leaves the gradients as they are.

    ``zeros(size, dtype)`` makes the replica's vectors, and ``activations(shape, dtype)`` what layers give: by
    default arrays without memory, for simulations; otherwise :class:`Zeros`, which can be sent. ``draw(size)``
    returns values that each backward writes into a tensor's gradient, if they matter.
    """
    return replace(
        backend("numpy"),
        name="sizes",
        zeros=zeros,
        asarray=lambda array: array,
        cross_entropy=lambda _blob: lambda logits, _labels, _scale: (math.nan, 0, logits),
        bind=partial(BoundSizes, activations, draw),
    )


class BoundSizes:
    """Layer, or rank's part of a layer, that gives arrays of the right shapes.

    An array of a whole batch has one row (:attr:`hpcdl.nn.split.part.Layout.of_batch`) and does not tell the
    images. So the part that gives it leaves its input for the part that takes it. A branch that ends by images
    does not tell those of the whole batch: the fork leaves its input for the switch after the branch.
    """

    def __init__(
        self,
        activations: Callable[[Shape, str], Array],
        draw: Callable[[int], Array] | None,
        layer: Layer,
        shape: Shape,
        site: Site,
    ) -> None:
        self._activations = activations
        self._shape, self._output = shape, layer.output(shape)
        self._dtype = storage_dtype(site.dtype)
        part = layer if isinstance(layer, Part) else None
        self._from_batch, self._to_batch = (part.takes.of_batch, part.gives.of_batch) if part else (False, False)
        self._stash = site.stash(part.of or part.name) if part else []
        self._joins = part is not None and part.stashes and not (self._from_batch or self._to_batch)
        self._forks = layer.name.endswith(".fork")
        self._as_forked = part is not None and part.takes.by_images != part.gives.by_images
        self._forked = site.stash(f"input of {layer.name.rpartition('.')[0]}") if self._joins else []
        self._taken = 0
        """Images of the joint's last input."""
        self._gradients: list[tuple[Array, Array]] = []
        """This layer's gradients, and their values."""
        if draw is not None:
            own = (view for name, view in site.gradients.items() if name.startswith(f"{site.path}."))
            self._gradients = [(view, draw(view.size).reshape(view.shape)) for view in own]

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.backend.Bound`."""
        rows = self._rows(x, self._from_batch, self._to_batch)
        if self._joins:
            self._taken = len(x)
            if self._forks:
                self._forked[:] = [x]
            rows = len(self._forked[0]) if self._as_forked else rows
        return self._activations((rows, *self._output), self._dtype)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """Write the values of the gradients, if there are any; return an array of the input's shape."""
        for gradient, values in self._gradients:
            gradient[...] = values
        rows = self._taken if self._joins else self._rows(dy, self._to_batch, self._from_batch)
        return self._activations((rows, *self._shape), self._dtype) if needs_dx else None

    def _rows(self, array: Array, from_batch: bool, to_batch: bool) -> int:
        if to_batch:
            self._stash.append(array)
            return 1
        return len(self._stash.pop() if from_batch else array)
