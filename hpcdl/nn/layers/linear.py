"""Fully connected layer."""

from __future__ import annotations

from hpcdl.nn.geometry import LinearGeometry, Shape
from hpcdl.nn.initial import Initializer, xavier, zeros
from hpcdl.nn.layer import BoundAffine, Site, Variable
from hpcdl.nn.ops import Bound


class Linear:
    """(N, in) to (N, out): y = x weight^T + bias, with weights (out, in).

    ``weight`` and ``bias`` are initialisers; ``bias=None`` omits the bias. With ``relu`` the result is max(y, 0).
    ``rates`` are the factors on the learning rate of weights and of biases.
    """

    def __init__(
        self,
        name: str,
        outputs: int,
        *,
        weight: Initializer = xavier,
        bias: Initializer | None = zeros,
        relu: bool = False,
        rates: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.name = name
        self.outputs = outputs
        self.weight = weight
        self.bias = bias
        self.relu = relu
        self.rates = rates

    def output(self, shape: Shape) -> Shape:
        """Return (out,); ValueError where the input is not a vector."""
        if len(shape) != 1:
            raise ValueError(f"{self.name}: needs vectors, got shape {shape}; put a Flatten before it")
        if self.outputs < 1:
            raise ValueError(f"{self.name}: needs at least 1 output, got {self.outputs}")
        return (self.outputs,)

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``weight`` (out, in) and ``bias`` (out,)."""
        declared = [Variable("weight", (self.outputs, *shape), self.weight, decay=True, rate=self.rates[0])]
        if self.bias is not None:
            declared.append(Variable("bias", (self.outputs,), self.bias, rate=self.rates[1]))
        return declared

    def bind(self, shape: Shape, site: Site) -> Bound:
        op = site.backend.linear(LinearGeometry(shape[0], self.outputs, site.dtype, self.relu))
        return BoundAffine(op, site, biased=self.bias is not None)
