"""Stage: a top-level layer bound to its part of a replica's flat vectors."""

from __future__ import annotations

from dataclasses import replace

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Shape, master, storage_dtype
from hpcdl.nn.layer import Layer, Site
from hpcdl.nn.ops import Bound
from hpcdl.nn.split.part import Part


class Stage:
    """A bound top-level layer.

    Outputs and gradients belong to the stage and are valid until its next forward or backward. Inputs, including
    images, must not change before backward. Training and evaluation use separate memory, so an evaluation may run
    between a forward and its backward.
    """

    def __init__(self, layer: Layer, shape: Shape, spans: tuple[slice, slice], site: Site, *, first: bool) -> None:
        self.name = layer.name
        self.span, self.state = spans
        """Slices of the flat vectors of parameters and of state; empty without them."""
        self.divided = isinstance(layer, Part) and bool(layer.cuts)
        """True if this rank has only its part of the layer's parameters and state."""
        self.group: str | None = getattr(layer, "group", None)
        """Name that stages share whose parameters sharded training gathers together; None: the stage alone."""
        self.shape = shape
        """Shape of one input."""
        self.output = layer.output(shape)
        """Shape of one output."""
        self._layer = layer
        self._site = site
        self._first = first
        self.output_dtype = storage_dtype(site.dtype)
        self.input_dtype = master(site.dtype) if first else self.output_dtype
        """Dtypes of the arrays of outputs and inputs."""
        before = len(site.heads)
        bound = layer.bind(shape, site) if site.backend.bind is None else site.backend.bind(layer, shape, site)
        self.heads = tuple(site.heads[before:])
        """Losses of the auxiliary classifiers in the layer."""
        stashing = isinstance(layer, Part) and layer.stashes
        if site.backend.record is not None and not self.heads and not stashing:
            # an auxiliary classifier passes its logits to the loss in each forward; a recording would skip that,
            # as it would skip the arrays that a part leaves for another
            bound = site.backend.record(bound)
        self._training = bound
        self._evaluation: Bound | None = None
        self._batch: int | None = None
        self._part: Array | None = None
        self._total: Array | None = None

    def forward(self, x: Array, train: bool = True) -> Array:
        """Return the outputs (N, *output), or (1, *output) of a whole batch; N may differ between calls.

        ValueError: an input of the wrong shape or dtype.
        """
        self._check("input", x, self.shape, self.input_dtype)
        if train:
            y = self._training.forward(self._narrow(_contiguous(x)), train=True)
            self._batch = len(y)
            return y
        if self._evaluation is None:
            self._evaluation = self._layer.bind(self.shape, replace(self._site, seeded=[], heads=[]))
        return self._evaluation.forward(self._narrow(_contiguous(x)), train=False)

    def backward(self, dy: Array, *, first: bool = True) -> Array | None:
        """Overwrite the gradients of ``span``; return the gradient of the last training input.

        The first stage returns None: the gradient of the images is not computed. Each training forward allows one
        backward. A stage of :meth:`again` adds to the gradients unless ``first``.

        ValueError: a gradient that does not fit the last training forward, or a second backward.
        """
        self._check("gradient", dy, self.output, self.output_dtype)
        if len(dy) != self._batch:
            raise ValueError(
                f"{self.name}: gradient of {len(dy)} images after a forward of {self._batch or 'none'}"
            )
        # a second backward would find the arrays released that forward stored
        self._batch = None
        dx = self._training.backward(_contiguous(dy), needs_dx=not self._first)
        if self._total is not None:
            if first:
                self._total[:] = self._part
            else:
                self._total += self._part
        return dx

    def again(self, views: dict[str, Array], part: Array, total: Array, stashes: dict[str, list[Array]]) -> Stage:
        """Bind the layer once more to the same parameters and state, with activations of its own.

        Backward writes to ``part``, of which ``views`` are views by full name, and adds it to ``total``.
        ``stashes`` is that of all stages of the binding. Random numbers continue those of this one.
        """
        site = replace(self._site, stashes=stashes, continued=dict(self._site.seeded))
        own = replace(site, gradients=views, seeded=[], heads=[])
        again = Stage(self._layer, self.shape, (self.span, self.state), own, first=self._first)
        if not site.backend.sizes_only:
            again._part, again._total = part, total
        return again

    def _narrow(self, x: Array) -> Array:
        """Convert images to the precision of the activations."""
        if self.input_dtype == self.output_dtype:
            return x
        assert self._site.backend.cast is not None, "Replica checks the precision"
        return self._site.backend.cast(x, self._site.dtype)

    def _check(self, role: str, array: Array, shape: Shape, dtype: str) -> None:
        if array.shape[1:] != shape or array.dtype != dtype:
            raise ValueError(
                f"{self.name}: {role} is {array.dtype} {array.shape}, not {dtype} (N, "
                f"{', '.join(map(str, shape))})"
            )


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else array.copy()
