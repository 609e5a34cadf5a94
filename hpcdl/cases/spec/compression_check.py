"""Checks of a case's compression before the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl import registry
from hpcdl.cases.spec.scheme import NONE
from hpcdl.compression.parts.protocol import Compression, Layout
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from hpcdl.cases.spec.choice import Choice
    from hpcdl.cases.spec.train_spec import TrainSpec
    from hpcdl.training.parts.compressed.plan import Plan


class _Tensor(NamedTuple):
    name: str
    span: slice
    shape: tuple[int, ...]


TRIED: Final = Layout(
    size=6, tensors=(_Tensor("fc.weight", slice(0, 4), (2, 2)), _Tensor("fc.bias", slice(4, 6), (2,)))
)
"""Layout on which a compressor is made before the run, to raise the ValueError of its settings."""


def check(spec: TrainSpec) -> None:
    """Raise ValueError for a compression that the strategy, the aggregation or the backend does not allow."""
    if spec.compression.name == NONE:
        if spec.compression.settings:
            raise ValueError(f"'none' has no setting {next(iter(spec.compression.settings))!r}")
        return
    if not spec.strategy.compresses:
        able = [one for one in registry.names("training") if registry.traits("training", one, Strategy).compresses]
        raise ValueError(f"{spec.training.name!r} compresses nothing; these do: {', '.join(able)}")
    if not spec.kernels.on_host:
        _check_device(spec)
    if spec.dtype == "float16":
        raise ValueError(
            "loss scaling of float16 lets gradients overflow, which no compressor sends; use bfloat16"
        )
    chosen = spec.plan
    assert chosen is not None
    if chosen.traits.own_momentum and getattr(spec.optimizer.make(), "momentum", None):
        raise ValueError(f"{chosen.name} has a momentum of its own; the optimizer's must be 0")
    spec.strategy.check_compression(chosen, spec.training.in_full)
    check_exchange(spec.compression, chosen, aggregates=spec.strategy.aggregates)


def _check_device(spec: TrainSpec) -> None:
    """Raise ValueError unless the compressor, and its messages, can be those of a gradient on a device."""
    assert spec.plan is not None
    if not spec.plan.traits.on_device:
        traits = {one: registry.traits("compression", one, Compression) for one in registry.names("compression")}
        able = [one for one, its in traits.items() if its.on_device]
        raise ValueError(
            f"{spec.compression.name!r} computes in the host's memory, not in that of backend"
            f" {spec.backend.name!r}; these compute there: {', '.join(able)}"
        )
    if not spec.strategy.aggregates:
        raise ValueError(
            f"{spec.training.name!r} sends messages between pairs of ranks, which are compressed on the host only;"
            f" backend {spec.backend.name!r} compresses what an aggregation sums"
        )


def check_exchange(compression: Choice, chosen: Plan, *, aggregates: bool = True) -> None:
    """Raise ValueError for a plan that cannot be exchanged, and for settings out of range.

    ``aggregates``: the aggregation exchanges it; otherwise messages between two ranks do.
    """
    if aggregates:
        chosen.check()
    else:
        chosen.check_messages()
    if ":" not in compression.name:
        chosen.make(TRIED)


def check_lengths(chosen: Plan) -> None:
    """Raise ValueError if lengths of messages depend on the values of the gradient, which simulations lack."""
    if chosen.kind != "vectors" and chosen.make(TRIED).expected(slice(0, TRIED.size)) is None:
        raise ValueError("lengths of its messages depend on values, which a simulation lacks")
