"""Compression of a case: compressor, settings, the exchange that its aggregation allows; pieces and messages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts.messages import HEADER, opened, padded, seal
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.compression.parts.protocol import Code, Compression, Encoder, Layout, SharedScalers, Sparse, Tensor
from hpcdl.compression.parts.selection import SparseMessages, VectorMessages
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import phantom


class Piece(NamedTuple):
    """Part of the gradient that ranks sum in one exchange."""

    span: slice
    gradient: Array
    """This rank's values, replaced by the sum, (span length,)."""
    residual: Array | None
    """Values that earlier exchanges have not sent, (span length,); None without error feedback."""
    step: int
    """Number of earlier exchanges of this part."""

    def part(self, begin: int, end: int) -> "Piece":
        """Return the elements ``begin`` to ``end`` of this piece."""
        residual = None if self.residual is None else self.residual[begin:end]
        span = slice(self.span.start + begin, self.span.start + end)
        return Piece(span, self.gradient[begin:end], residual, self.step)

    def add_residual(self) -> Array:
        """Return the vector to encode: gradient plus residual, in the residual's memory if there is one."""
        if self.residual is None:
            return self.gradient
        residual = self.residual
        residual += self.gradient
        return residual


class MessageCodec:
    """Writes and reads the messages of one encoder."""

    def __init__(self, encoder: Encoder, tensors: Sequence[Tensor], rank: int, *, sparse: bool) -> None:
        self.encoder = encoder
        self.sharing = encoder if isinstance(encoder, SharedScalers) else None
        """The encoder, if ranks share its scalers when servers sum."""
        self._sparse = sparse
        self._tensors = tensors
        self._rank = rank

    def bound(self, span: slice) -> int:
        return padded(self.encoder.bound(span))

    def encode(self, piece: Piece, into: Array) -> int:
        """Write the message of a piece to ``into``; the residual keeps what is not sent. Returns the bytes.

        Raises FloatingPointError, naming step and tensor, for a value that is infinite or not a number.
        """
        vector = piece.add_residual()
        room = into[HEADER : self.bound(piece.span)]
        with located(piece, vector, self._tensors):
            return seal(into, self.encoder.encode(piece.span, vector, room, piece.step), self._rank)

    def scalers(self, piece: Piece) -> Array:
        """Return this rank's scalers of a piece, for an encoder that shares them; raises as :meth:`encode`."""
        assert self.sharing
        vector = piece.gradient if piece.residual is None else piece.gradient + piece.residual
        with located(piece, vector, self._tensors):
            return self.sharing.scalers(piece.span, vector)

    def decode(self, span: slice, message: Array, sender: int, into: Array) -> None:
        """Add the message of rank ``sender`` to ``into``. Raises ValueError, naming it, for a corrupt message."""
        content = opened(message, sender)
        try:
            self.encoder.decode(span, content, into)
        except ValueError as error:
            raise ValueError(f"message of rank {sender}: {error}") from None

    async def write(self, comm: Comm, piece: Piece, into: Array) -> Array:
        """Call :meth:`encode` and return the message, a part of ``into``."""
        return into[: await comm.apply("encode", partial(self.encode, piece, into), 2 * piece.gradient.nbytes)]

    async def add(
        self,
        comm: Comm,
        span: slice,
        messages: Mapping[int, Array],
        into: Array,
        *,
        base: Array | float | None = None,
    ) -> None:
        """Add messages, by sender, to ``into``, first set to ``base`` if given. Raises as :meth:`decode`."""

        def decode() -> None:
            if base is not None:
                into[:] = base
            for sender, message in messages.items():
                self.decode(span, message, sender, into)

        # decoding writes the entries if they are few, else the whole vector
        written = sum(map(len, messages.values())) if self._sparse else len(messages) * into.nbytes
        await comm.apply("decode", decode, written + (0 if base is None else into.nbytes))


@contextmanager
def located(piece: Piece, vector: Array, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Let a FloatingPointError name the step, and the tensor of the first value that is not finite."""
    try:
        yield
    except FloatingPointError as error:
        wrong = np.flatnonzero(~np.isfinite(vector))
        place = piece.span.start + (int(wrong[0]) if len(wrong) else 0)
        names = [tensor.name for tensor in tensors if tensor.span.start <= place < tensor.span.stop]
        where = names[0] if len(wrong) and names else f"elements {piece.span.start} to {piece.span.stop}"
        raise FloatingPointError(f"step {piece.step}: gradient of {where}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class ExchangeSettings:
    """Settings that every compressor has in a suite."""

    error_feedback: bool | None = None
    """Add what is not sent to the next gradient; default: the compressor's trait."""
    warmup_steps: int = 0
    """First steps, in which the gradient is exchanged dense."""
    code: str | dict[str, Any] | None = None
    """Entropy code of the positions of entries, by name or as a table; default: words."""


def kind_of(compressor: Callable[..., Any]) -> str:
    """Return ``"vectors"``, ``"entries"`` or ``"messages"``: the product of a compressor.

    Raises ValueError for a class that follows none of the protocols.
    """
    for method, kind in (("rounds", "vectors"), ("select", "entries"), ("encode", "messages")):
        if hasattr(compressor, method):
            return kind
    raise ValueError(f"{compressor.__name__} has none of the methods rounds, select and encode")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Compression of a case."""

    make: Callable[..., Any]
    """Compressor, to be called with a layout."""
    kind: str
    traits: Compression
    settings: ExchangeSettings
    scheme: Callable[..., Any]
    scheme_settings: Mapping[str, Any]
    aggregation: Aggregation
    codec: type[MessageCodec] = MessageCodec

    @property
    def feeds_back(self) -> bool:
        """True if what is not sent is added to the next gradient."""
        chosen = self.settings.error_feedback
        return self.traits.error_feedback if chosen is None else chosen

    @property
    def without_warmup(self) -> "Plan":
        """This plan with compression from the first step on."""
        return replace(self, settings=replace(self.settings, warmup_steps=0))

    def encoder(self, compressor: Any, layout: Layout) -> Encoder:
        """Return the encoder of messages that one rank can read."""
        if self.kind == "entries":
            return SparseMessages(layout, compressor, self.make_code())
        if self.kind == "vectors":
            return VectorMessages(compressor, fed_back=self.feeds_back)
        return compressor  # type: ignore[no-any-return]

    def make_code(self) -> Code:
        """Return the entropy code of positions. Raises ValueError for an unknown one."""
        code = self.settings.code
        table = {"name": code} if isinstance(code, str) else dict(code or {"name": "words"})
        name = table.pop("name", None)
        try:
            if not isinstance(name, str):
                raise ValueError('must be a name or a table such as {name = "rice"}')  # noqa: TRY004, TRY301
            make = registry.find("codes", name)
            registry.check_settings(make, table)
            return make(**table)  # type: ignore[no-any-return]
        except ValueError as error:
            raise ValueError(f"code: {error}") from None

    @property
    def name(self) -> str:
        return str(getattr(self.make, "func", self.make).__name__)


def readable(make: Callable[..., Any]) -> bool:
    """Return True if one rank can read what a compressor, bound or not, makes without a sum over all ranks."""
    return any(hasattr(getattr(make, "func", make), method) for method in ("select", "encode", "restore"))


def of_sizes(plan: Plan) -> Plan:
    """Return a plan whose messages are as long as those of ``plan``, compressed from the first step on."""
    make = plan.make if plan.kind == "messages" else partial(Sized, plan.make)
    return replace(plan.without_warmup, make=make, codec=SizedCodec)


class Sized:
    """A compressor whose vectors and entries have sizes only."""

    def __init__(self, make: Callable[[Layout], Any], layout: Layout) -> None:
        self._compressor = make(layout)
        self._dtype = layout.dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compressor, name)

    def rounds(self, span: slice, _vector: Array, _residual: Array | None, _step: int) -> Iterator[Array]:
        return (phantom(size, dtype) for size, dtype in self._compressor.lengths(span))

    def select(self, span: slice, _vector: Array, _step: int) -> Sparse:
        """See :class:`hpcdl.compression.parts.protocol.Selector`. ValueError: the number depends on the values."""
        count = _known(self._compressor, self._compressor.expected(span))
        return Sparse(phantom(count, np.int32), phantom(count, self._dtype))


class SizedCodec(MessageCodec):
    """Messages of the usual sizes."""

    def encode(self, piece: Piece, into: Array) -> int:  # noqa: ARG002
        """Return the usual bytes of a message. ValueError: they depend on the values."""
        return padded(_known(self.encoder, self.encoder.expected(piece.span)))

    def scalers(self, piece: Piece) -> Array:
        assert self.sharing
        return np.zeros(self.sharing.count(piece.span), piece.gradient.dtype)

    def decode(self, span: slice, message: Array, sender: int, into: Array) -> None:
        """Do nothing."""


def _known(compressor: object, expected: int | None) -> int:
    if expected is None:
        name = type(compressor).__name__
        raise ValueError(f"the messages of {name} depend on the gradient's values; a simulation of sizes has none")
    return expected
