"""Layers of layers: concatenated branches, residual blocks, auxiliary classifiers."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Addition, Bound, Concatenation
from hpcdl.nn.geometry import Blob, ConcatenationGeometry, Shape
from hpcdl.nn.layer import AuxiliaryLoss, BoundChain, Chain, Layer, Site, Variable
from hpcdl.nn.layers import BatchNorm, BoundBatchNorm


class Concat:
    """Apply every branch (a list of layers) to the input and concatenate the outputs on channels.

    Szegedy et al. 2014, section 4. Layer names must be unique over all branches.
    """

    def __init__(self, name: str, branches: Sequence[Sequence[Layer]]) -> None:
        self.name = name
        self.chains = tuple(Chain(layers) for layers in branches)

    def output(self, shape: Shape) -> Shape:
        """Return (H, W, sum of channels); ValueError where branches differ in more than channels."""
        outputs = self._outputs(shape)
        return (*outputs[0][:-1], sum(output[-1] for output in outputs))

    def declare(self, shape: Shape) -> list[Variable]:
        return [variable for branch in self.chains for variable in branch.declare(shape)]

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundConcat(
            [branch.bind(shape, site) for branch in self.chains],
            site.backend.concatenation(ConcatenationGeometry(self._outputs(shape), site.dtype)),
            site.backend.addition(Blob(shape, site.dtype)),
        )

    def _outputs(self, shape: Shape) -> tuple[Shape, ...]:
        if len(self.chains) < 2:
            raise ValueError(f"{self.name}: needs two branches or more, got {len(self.chains)}")
        outputs = tuple(branch.output(shape) for branch in self.chains)
        if len({output[:-1] for output in outputs}) != 1:
            raise ValueError(f"{self.name}: branches end in {outputs}, which differ in more than channels")
        return outputs


@dataclass(eq=False)
class BoundConcat:
    """Bound parallel branches."""

    branches: Sequence[BoundChain]
    join: Concatenation
    add: Addition

    def forward(self, x: Array, train: bool) -> Array:
        return self.join.forward([branch.forward(x, train) for branch in self.branches])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        pieces = zip(self.branches, self.join.backward(dy), strict=True)
        terms = [branch.backward(piece, needs_dx) for branch, piece in pieces]
        return self.add.forward([term for term in terms if term is not None]) if needs_dx else None


class Residual:
    """y = branch(x) + shortcut(x); an empty shortcut is the identity (He et al. 2015, section 3.2).

    With ``relu`` the result is max(y, 0). Layer names must be unique over branch and shortcut.
    """

    def __init__(
        self, name: str, branch: Sequence[Layer], shortcut: Sequence[Layer] = (), *, relu: bool = False
    ) -> None:
        self.name = name
        self.branch, self.shortcut = self.chains = Chain(branch), Chain(shortcut)
        self.relu = relu

    def output(self, shape: Shape) -> Shape:
        """Return the branch's shape; ValueError where the shortcut's shape differs."""
        output, shortcut = self.branch.output(shape), self.shortcut.output(shape)
        if output != shortcut:
            raise ValueError(f"{self.name}: the branch ends in {output}, the shortcut in {shortcut}")
        return output

    def declare(self, shape: Shape) -> list[Variable]:
        return self.branch.declare(shape) + self.shortcut.declare(shape)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`.

        If the branch ends in batch normalisation, as in the paper, that layer also computes the sum and the ReLU.
        """
        output = self.output(shape)
        shortcut, add = self.shortcut.bind(shape, site), site.backend.addition(Blob(shape, site.dtype))
        last = self.branch.layers[-1] if self.branch.layers else None
        if isinstance(last, BatchNorm) and not last.relu:
            branch = Chain(self.branch.layers[:-1]).bind(shape, site)
            return BoundResidual(branch, last.join(output, site.inside(last.name), relu=self.relu), shortcut, add)
        return BoundResidual(
            self.branch.bind(shape, site), ShortcutSum(Blob(output, site.dtype), site, self.relu), shortcut, add
        )


class ShortcutSum:
    """End of a residual block without batch normalisation: the sum, and a ReLU if ``relu``."""

    def __init__(self, blob: Blob, site: Site, relu: bool) -> None:
        self._add = site.backend.addition(blob)
        self._relu = site.backend.relu(blob) if relu else None

    def forward(self, x: Array, _train: bool, shortcut: Array) -> Array:
        y = self._add.forward([x, shortcut])
        return y if self._relu is None else self._relu.forward(y)

    def backward_joined(self, dy: Array) -> tuple[Array, Array]:
        dz = dy if self._relu is None else self._relu.backward(dy)
        return dz, dz


@dataclass(eq=False)
class BoundResidual:
    """Bound residual block; ``join``, often its last batch normalisation, adds the shortcut."""

    branch: BoundChain
    join: BoundBatchNorm | ShortcutSum
    shortcut: BoundChain
    add_gradients: Addition

    def forward(self, x: Array, train: bool) -> Array:
        return self.join.forward(self.branch.forward(x, train), train, self.shortcut.forward(x, train))

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        branch_dy, shortcut_dy = self.join.backward_joined(dy)
        assert shortcut_dy is not None, "bound with a shortcut"
        del dy
        terms = self.branch.backward(branch_dy, needs_dx), self.shortcut.backward(shortcut_dy, needs_dx)
        return self.add_gradients.forward([term for term in terms if term is not None]) if needs_dx else None


class Auxiliary:
    """Auxiliary classifier with its own loss during training (Szegedy et al. 2014, section 5).

    The layer returns x unchanged. ``layers`` end in logits; their softmax cross-entropy is added to the replica's
    loss with factor ``weight``. Evaluation skips them.
    """

    def __init__(self, name: str, layers: Sequence[Layer], *, weight: float = 0.3) -> None:
        self.name = name
        self.head = Chain(layers)
        self.chains = (self.head,)
        self.weight = weight

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the classifier rejects it or does not end in a vector."""
        self._classes(shape)
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        self._classes(shape)
        return self.head.declare(shape)

    def bind(self, shape: Shape, site: Site) -> Bound:
        loss = AuxiliaryLoss(site.path, self._classes(shape), self.weight, site.backend, site.dtype)
        site.heads.append(loss)
        return BoundAuxiliary(self.head.bind(shape, site), loss, site.backend.addition(Blob(shape, site.dtype)))

    def _classes(self, shape: Shape) -> int:
        if self.weight <= 0:
            raise ValueError(f"{self.name}: weight must be positive, got {self.weight}")
        try:
            output = self.head.output(shape)
        except ValueError as error:
            raise ValueError(f"{self.name}.{error}") from None
        if len(output) != 1:
            raise ValueError(f"{self.name}: the classifier ends in {output}, not in a vector of logits")
        return output[0]


@dataclass(eq=False)
class BoundAuxiliary:
    """Bound auxiliary classifier."""

    head: BoundChain
    loss: AuxiliaryLoss
    add: Addition

    def forward(self, x: Array, train: bool) -> Array:
        if train:
            self.loss.put(self.head.forward(x, train))
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.backend.Bound`; ValueError without labels since forward."""
        dx = self.head.backward(self.loss.take(), needs_dx)
        return None if dx is None else self.add.forward([dy, dx])
