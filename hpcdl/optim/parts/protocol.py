"""Protocol of optimizers, their base, checks of their settings; loss scaling around an optimizer.

Parameters may have no weight decay, or their own factor on the learning rate.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from hpcdl.fabric.comm import Array

BLOCK_BYTES: Final = 1 << 17
"""Bytes of one vector per block. Adam's four vectors and two of scratch fit a 1 MiB level-two cache, and a block
takes much longer than the microsecond for starting an array operation."""


@dataclass(frozen=True)
class SpecialEntries:
    """Entries of one block without weight decay, and entries with a factor on the learning rate."""

    undecayed: list[slice]
    rates: list[tuple[slice, float]]

    def decayed(self, gradients: Array, parameters: Array, decay: float, scratch: Array) -> Array:
        """Return gradients + decay * parameters, without the second term for entries without weight decay.

        The result is in ``scratch``, or is ``gradients`` itself if ``decay`` is 0; do not write to it.
        """
        if decay == 0:
            return gradients
        np.multiply(parameters, decay, out=scratch)
        self.without_decay(scratch)
        scratch += gradients
        return scratch

    def without_decay(self, decay: Array) -> None:
        """Set the decay of entries without weight decay to 0."""
        for span in self.undecayed:
            decay[span] = 0

    def scale(self, step: Array) -> None:
        """Multiply a step made with the common learning rate by the entries' factors."""
        for span, multiple in self.rates:
            step[span] *= multiple


class Multipliers:
    """Spans of a flat vector without weight decay, or with a factor on the learning rate."""

    def __init__(self, tensors: Sequence[tuple[slice, bool, float]] = ()) -> None:
        """Take span, weight decay and factor on the rate of each tensor; without tensors all entries are equal."""
        self._tensors = tensors
        self._by_block: dict[tuple[int, int], SpecialEntries] = {}

    @classmethod
    def of(cls, tensors: Iterable[Any]) -> "Multipliers":
        """Return the multipliers of a vector made of ``tensors``, as :class:`hpcdl.nn.replica.Tensor`."""
        return cls([(tensor.span, tensor.decay, tensor.rate) for tensor in tensors])

    def __deepcopy__(self, _memo: object) -> "Multipliers":
        return self

    def part(self, span: slice) -> "Multipliers":
        return Multipliers(
            [
                (slice(entries.start - span.start, entries.stop - span.start), decay, rate)
                for entries, decay, rate in self._tensors
                if entries.start < span.stop and entries.stop > span.start
            ]
        )

    def tensors(self, *vectors: Array) -> Sequence[tuple[slice, bool, float]]:
        """Return span, weight decay and factor on the rate of each tensor, or part of it, in the flat ``vectors``.

        Without tensors the vector is one. Raises ValueError if a vector is not flat or the lengths differ.
        """
        length = _length(vectors)
        return self._clipped(0, length) if self._tensors else [(slice(0, length), True, 1.0)]

    def check_whole(self, vector: Array) -> None:
        """Raise ValueError if a tensor is not whole in ``vector``."""
        if any(span.start < 0 or span.stop > vector.size for span, _, _ in self._tensors):
            raise ValueError("this optimizer needs whole tensors, but the vector ends inside of one")

    def blocks(self, *vectors: Array, scratch: int) -> Iterator[tuple[tuple[Array, ...], SpecialEntries]]:
        """Yield blocks of the vectors with ``scratch`` uninitialised ones, and their special entries.

        With blocks only the first of several array operations reads from memory. The last block may be shorter.
        Scratch has the dtype of the first vector. GPU arrays are one block. Raises ValueError if a vector is not
        flat or the lengths differ.
        """
        length, first = _length(vectors), vectors[0]
        block = BLOCK_BYTES // first.itemsize if isinstance(first, np.ndarray) else max(length, 1)
        buffers = [np.empty_like(first[:block]) for _ in range(scratch)]
        for begin in range(0, length, block):
            end = min(begin + block, length)
            parts = [vector[begin:end] for vector in vectors] + [buffer[: end - begin] for buffer in buffers]
            yield tuple(parts), self._special(begin, end)

    def scale(self, step: Array) -> None:
        """Multiply a step of the whole vector, made with the common learning rate, by the entries' factors."""
        self._special(0, step.size).scale(step)

    def _special(self, begin: int, end: int) -> SpecialEntries:
        """Return the special entries of a block, counted from its start."""
        if (begin, end) not in self._by_block:
            inside = self._clipped(begin, end)
            self._by_block[begin, end] = SpecialEntries(
                [entries for entries, decay, _ in inside if not decay],
                [(entries, rate) for entries, _, rate in inside if rate != 1],
            )
        return self._by_block[begin, end]

    def _clipped(self, begin: int, end: int) -> list[tuple[slice, bool, float]]:
        """Return the tensors between two positions, clipped to them and counted from the first."""
        return [
            (slice(max(0, entries.start), min(end - begin, entries.stop)), decay, rate)
            for entries, decay, rate in self.part(slice(begin, end))._tensors  # noqa: SLF001 - of the same class
        ]


def _length(vectors: Sequence[Array]) -> int:
    """Return the length of flat vectors. Raises ValueError if one is not flat or the lengths differ."""
    length = vectors[0].size
    if any(vector.shape != (length,) for vector in vectors):
        raise ValueError(
            f"expected flat vectors of one length, got shapes {', '.join(str(v.shape) for v in vectors)}"
        )
    return int(length)


def squares(pairs: Iterable[tuple[Array, Array]]) -> Array:
    """Return the squared Euclidean norms of pairs of flat vectors, (pairs, 2)."""
    return np.array([[float(vector @ vector) for vector in pair] for pair in pairs]).reshape(-1, 2)


UNIFORM: Final = Multipliers()
"""Multipliers for equal entries: all with weight decay and the common learning rate."""


class Optimizer(Protocol):
    """Update rule with its state, for one flat vector or one shard of it.

    Rules act per scalar; those with the attribute ``whole_tensors`` act per tensor, and a shard must have whole
    ones. An optimizer belongs to one vector; its first update fixes the length.
    """

    multipliers: Multipliers
    """Entries without weight decay, or with a factor on the learning rate; set by the session."""

    state: dict[str, Array]
    """State vectors by name, with the parameters' shape and dtype; empty before the first update. They may be
    averaged over ranks, stored, replaced, and counted (``sum(v.nbytes for v in state.values())``)."""

    steps: int
    """Number of updates so far; a checkpoint stores ``steps`` and ``state``."""

    @property
    def look_ahead(self) -> float:
        """Return the factor of ``state["velocity"]`` in the look-ahead; 0 except for Nesterov's rule."""

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place by one step along ``gradients`` (n,), which are not changed.

        All arithmetic is in the dtype of ``parameters``; n may be 0. Raises ValueError if the shapes differ, if
        the vectors are not flat, or if the state belongs to another vector.
        """


MAX_INTEGER: Final = 1 << 63
"""Upper limit of numbers, as in all suites."""


def _number(name: str, value: float) -> float:
    # suite files are written by hand and may contain true, "0.9" or nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_INTEGER:
        raise ValueError(f"{name} must be a finite number, less than 2^63, not {value!r}")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number >= 0."""
    if _number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, but is {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number > 0."""
    if _number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, but is {value!r}")
    return float(value)


def fraction(name: str, value: float) -> float:
    """Return ``value`` if 0 <= value < 1."""
    if not 0 <= _number(name, value) < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, but is {value!r}")
    return float(value)


def state_vector(state: dict[str, Array], name: str, like: Array) -> Array:
    """Return the vector ``state[name]``; create zeros with the shape and dtype of ``like`` if missing.

    Raises ValueError if the vector has another shape or dtype, because an optimizer belongs to one vector.
    """
    if name not in state:
        state[name] = np.zeros_like(like)
    vector = state[name]
    if vector.shape != like.shape or vector.dtype != like.dtype:
        raise ValueError(
            f"{name} was made for {vector.dtype} parameters of shape {vector.shape}, "
            f"not for {like.dtype} of shape {like.shape}"
        )
    return vector


def without_lookahead(optimizer: Optimizer, parameters: Array, into: Array) -> None:
    """Set ``into`` (n,) to ``parameters`` (n,) minus the look-ahead of ``optimizer``."""
    velocity = optimizer.state.get("velocity") if optimizer.look_ahead else None
    if velocity is None:  # no look-ahead, or no update yet
        into[:] = parameters
    else:
        into[:] = velocity
        into *= -optimizer.look_ahead
        into += parameters


def change(optimizer: Optimizer, parameters: Array, gradients: Array, learning_rate: float, before: Array) -> None:
    """Copy ``parameters`` (n,) to ``before`` and replace them by the change that the optimizer makes."""
    before[:] = parameters
    optimizer.update(parameters, gradients, learning_rate)
    parameters -= before


class Rule:
    """Base of optimizers: what all of them have, and the count of updates. A subclass has ``step``."""

    def __init__(self, weight_decay: float) -> None:
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    @property
    def look_ahead(self) -> float:
        return 0.0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        self.step(parameters, gradients, float(learning_rate))
        self.steps += 1

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        """See :meth:`Optimizer.update`; the rate is a float, so that it keeps the precision of the parameters."""
        raise NotImplementedError


class LossScale:
    """Loss scale of one replica, an object with ``loss_scale`` and ``parameters``, shared by all its optimizers.

    It changes only between steps: after all entries of the parameters have been updated or skipped.
    """

    def __init__(self, replica: Any, initial: float, growth_interval: int) -> None:
        replica.loss_scale = initial
        self.replica = replica
        self._growth_interval = growth_interval
        self._without_overflow = 0
        self._recorded = 0
        """Entries of this step's gradient recorded so far."""
        self._overflowed = False

    def __deepcopy__(self, _memo: object) -> "LossScale":
        """Return itself, because all optimizers of a replica share one scale."""
        return self

    def record(self, entries: int, *, overflowed: bool) -> None:
        """Count ``entries`` of this step's gradient; after the last ones choose the next step's scale."""
        self._recorded += entries
        self._overflowed |= overflowed
        if self._recorded < self.replica.parameters.size:
            return
        self._without_overflow = 0 if self._overflowed else self._without_overflow + 1
        if self._overflowed:
            self.replica.loss_scale /= 2
        elif self._without_overflow == self._growth_interval:
            self._without_overflow = 0
            self.replica.loss_scale *= 2
        self._recorded, self._overflowed = 0, False


def _delegated(name: str) -> Any:
    """Return a property that is the attribute ``name`` of the wrapped optimizer."""
    return property(
        lambda self: getattr(self._optimizer, name), lambda self, value: setattr(self._optimizer, name, value)
    )


class LossScaling:
    """Optimizer wrapper with dynamic loss scaling (Micikevicius et al. 2018, section 3.2).

    float16 has no numbers below 6e-8 and few below 6e-5, where many gradients lie. The loss, and so every
    gradient, is multiplied by ``replica.loss_scale``; an update divides by it. If a gradient overflowed, the
    update is skipped and the scale halved; after ``growth_interval`` updates without overflow it doubles. Defaults
    are those of PyTorch's ``GradScaler``. Gradients summed over ranks are equal, so all ranks decide alike. Scales
    are powers of two, so scaling causes no rounding.

    Copies for parts of the parameters share the scale; a step then is an update of every part. A part whose
    gradient overflowed is skipped, and after the step the scale is halved once.

    Unlike other optimizers, ``update`` leaves the gradients divided by the scale.
    """

    multipliers = _delegated("multipliers")
    state = _delegated("state")
    look_ahead = _delegated("look_ahead")
    steps = _delegated("steps")

    def __init__(
        self, optimizer: Optimizer, replica: Any, *, scale: float = 65536.0, growth_interval: int = 2000
    ) -> None:
        self._optimizer = optimizer
        self._scale = LossScale(replica, scale, growth_interval)
        self.skipped = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """See :class:`hpcdl.optim.parts.protocol.Optimizer`; skips the update if a gradient is not finite."""
        finite = bool(np.isfinite(gradients).all())
        if finite:
            gradients *= 1 / self._scale.replica.loss_scale
            self._optimizer.update(parameters, gradients, learning_rate)
        else:
            self.skipped += 1
        self._scale.record(gradients.size, overflowed=not finite)
