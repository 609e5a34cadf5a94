"""One rank's part of a layer: an ordinary layer with fewer outputs, between two layouts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from hpcdl.nn.split.dropout import masks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.initial import Draws
    from hpcdl.nn.layer import Layer, Site, Variable
    from hpcdl.nn.split.layout import Layout


@dataclass(frozen=True)
class Cut:
    """A rank's part of a layer's variable: positions ``own`` on ``axis`` of the whole, reshaped to ``view``."""

    whole: Variable
    view: Shape
    axis: int
    own: slice

    def initial(self, values: Array, draws: Draws) -> None:
        """Fill ``values`` with the rank's part of the initial values."""
        cut = (self.view, self.axis, self.own)
        self.whole.initial(values, replace(draws, shape=self.whole.shape, cut=cut))


@dataclass(frozen=True)
class Part:
    """One rank's part of a layer. It takes and gives activations in a layout.

    A replicated layout means copies of the whole where a layer takes it, and summands of the whole where it gives
    it. Initial values do not depend on the ranks; each rank draws its own.
    """

    layer: Layer
    """Layer with the sizes of this rank."""
    takes: Layout
    gives: Layout
    rank: int
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    """Cuts of all variables by name; empty if they are whole on every rank."""
    of: str = ""
    """Name of the whole layer, if it is not that of ``layer``."""
    stashes: bool = False
    """True if it leaves arrays for another part of the same layer, or takes them (:class:`Site`)."""

    @property
    def name(self) -> str:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return self.layer.name

    def output(self, shape: Shape) -> Shape:
        """See :class:`hpcdl.nn.layer.Layer`."""
        return self.layer.output(shape)

    def declare(self, shape: Shape) -> list[Variable]:
        """See :class:`hpcdl.nn.layer.Layer`."""
        declared = self.layer.declare(shape)
        if not self.cuts:
            return declared
        return [
            replace(
                variable,
                initial=self.cuts[variable.name].initial,
                drawn_as=f"{self.of or self.name}.{variable.name}",
            )
            for variable in declared
        ]

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        masked = replace(site.backend, dropout=partial(masks, self.takes, self.rank, site.backend.dropout))
        return self.layer.bind(shape, replace(site, backend=masked))


def along(layer: Layer, shape: Shape, own: slice, view: Shape | None = None, axis: int = 0) -> dict[str, Cut]:
    """Return the cuts of all variables of ``layer``, for inputs of ``shape``, to ``own`` on ``axis`` of ``view``.

    ``view`` is by default the shape of the variable.
    """
    return {one.name: Cut(one, view or one.shape, axis, own) for one in layer.declare(shape)}
