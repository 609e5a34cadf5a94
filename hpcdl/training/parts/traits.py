"""Traits that a strategy declares at the end of its module: ``TRAITS: Final = Strategy(check=check)``."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hpcdl.registry import nearest
from hpcdl.training.parts.plan import Plan

Settings = Mapping[str, Any]
"""All settings of the strategy by name, defaults included."""
BY_STRATEGY: Final = "own"
"""In the place of an aggregation: the strategy moves its messages itself."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Traits of a training strategy. A module that declares none has the defaults."""

    aggregates: bool = True
    """Sums vectors by the case's aggregation; False: moves its messages itself."""
    compresses: bool = False
    """Sums gradients by :meth:`hpcdl.training.parts.session.Session.reduce`, which may compress them, or has
    compressed messages of its own."""
    lockstep: bool = False
    """All ranks take every step together, all steps cost the same, and messages depend on sizes only. Such a
    strategy can be replayed."""
    periodic: bool = False
    """Ranks meet in every :attr:`cycle` of steps, and messages depend on sizes only: it can be replayed, too."""
    stops_at_target: bool = True
    """Has a common step after which all ranks can stop at the target accuracy."""
    scales_loss: bool = True
    """Can train in float16, by loss scaling."""
    weighs_images: bool = False
    """A rank is weighted by its images, so that shares of a batch need not be equal."""
    shards_state: bool = False
    """Sums gradients by the reduce_scatter of the aggregation, and gathers parameters by its allgather."""
    pipelines: bool = False
    """Passes microbatches through ranks that have consecutive layers."""
    splits_layers: bool = False
    """Trains replicas of model groups, too: ranks exchange parameters and gradients of the same parts only."""
    served: bool = False
    """Servers apply the gradients that workers push."""
    optimizer: str | None = None
    """The strategy's own optimizer, in place of the case's."""

    least: Mapping[str, int] = field(default_factory=dict)
    """Least valid value of a setting, by name."""
    words: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Valid words of a setting, by name."""
    check: Callable[[int, Settings], None] = lambda _ranks, _settings: None
    """``check(ranks, settings)`` raises ValueError for other settings that cannot run."""
    check_compression: Callable[[Plan, Settings], None] = lambda _plan, _settings: None
    """``check_compression(plan, settings)`` raises ValueError for a compressor that the strategy cannot use."""
    check_rates: Callable[[Callable[[int], float], int, Settings], None] = lambda _rate, _steps, _settings: None
    """``check_rates(rate, steps, settings)`` raises ValueError for learning rates that contradict the settings."""
    title: Callable[[int, Settings], str | None] = lambda _ranks, _settings: None
    """``title(ranks, settings)``: the literature's name of the strategy with these settings."""
    workers: Callable[[int, Settings], range] = lambda ranks, _settings: range(ranks)
    """``workers(ranks, settings)``: the ranks that share a batch."""
    may_fail: Callable[[int, Settings], range] | None = None
    """``may_fail(ranks, settings)``: the ranks of which one may fail without ending training; None: no rank."""
    microbatches: Callable[[Settings], int] = lambda _settings: 1
    """``microbatches(settings)``: parts of a worker's share of a batch that pass through the layers in turn."""
    in_flight: Callable[[int, int, Settings], int] = lambda _stage, _stages, _settings: 1
    """``in_flight(stage, stages, settings)``: microbatches whose activations a stage holds at a time, at most."""
    shards: Callable[[Settings], int] = lambda _settings: 1
    """``shards(settings)``: parts into which the parameters are divided, each updated by the case's optimizer."""
    server_updates: Callable[[Settings], bool] = lambda _settings: False
    """``server_updates(settings)``: one rank sums dense gradients, updates whole layers and broadcasts them."""
    most_steps: Callable[[int, Settings], int] = lambda _ranks, _settings: 1
    """``most_steps(ranks, settings)``: the most steps that one rank takes of a global batch."""
    gradients_in_flight: Callable[[Settings], int | None] = lambda _settings: None
    """``gradients_in_flight(settings)``: gradients of a worker between the pull of their parameters and their
    push; None if workers wait for each other, or do not pull and push for every gradient."""
    cycle: Callable[[Settings], int] = lambda _settings: 1
    """``cycle(settings)``: steps after which costs repeat. Raises ValueError if messages depend on more than
    sizes, so that steps cannot be predicted."""

    @property
    def updates_shards(self) -> bool:
        """True if updates of parts of the parameters belong to the exchange, and are no step's own work."""
        return self.served or self.shards_state

    def check_settings(self, ranks: int, settings: Settings) -> None:
        """Raise ValueError for a value below :attr:`least`, an unknown word, and what :attr:`check` refuses."""
        for name, least in self.least.items():
            if settings[name] < least:
                raise ValueError(f"{name}: must be at least {least}, not {settings[name]}")
        for name, words in self.words.items():
            if isinstance(settings[name], str) and settings[name] not in words:
                raise ValueError(f"{name}: unknown {settings[name]!r}{nearest(settings[name], words)}")
        self.check(ranks, settings)
