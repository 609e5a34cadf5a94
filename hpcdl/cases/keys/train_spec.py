"""Settings of a training case, and the objects made of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from hpcdl.cases.keys.compute_times import DEVICES
from hpcdl.cases.keys.key import MAX_RANKS, MAX_STEPS, MAX_THREADS, Choice, key, keys, opened, read
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.keys.suite_tables import EITHER_OR
from hpcdl.data.parts.dataset import Dataset
from hpcdl.data.parts.sharding import EPOCHS, EQUAL, REPLICAS, Shares, bounds
from hpcdl.fabric.faults import Failure, Straggler
from hpcdl.fabric.network import NETWORKS, Site
from hpcdl.nn.backend import Backend, backend
from hpcdl.nn.geometry import HALF, master, storage_dtype
from hpcdl.nn.layer import Layer
from hpcdl.nn.reduced_weights import Pruning, Quantization, pruned, quantized
from hpcdl.nn.replica import Replica
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.optim.parts.protocol import LossScaling, Optimizer
from hpcdl.optim.parts.schedules import schedule
from hpcdl.registry import label, nearest, shortened
from hpcdl.training.parts.inputs import Inputs
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.mesh import Mesh, ModelGroup
from hpcdl.training.parts.plan import ExchangeSettings
from hpcdl.training.parts.session import Evaluation

MAX_AHEAD: Final = 1000
"""Batches made ahead, at most."""
MAX_JITTER: Final = 10
"""Standard deviation of a simulated batch's time by its mean, at most."""

MAX_TRIALS: Final = 1000
SEED: Final = 0
"""Seed of the trials' trainings, and of their settings: all seeds of a case share what was found."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A search for the learning rate, and for settings of optimizer and strategy, or a grid of one number.

    A grid has one trial for each of its learning ``rates``, or of its global ``batches``. With ``like``, a table
    of keys that replace the case's own in the trials, the case takes what another case finds, a rate times
    ``factor``; "none" instead of a table such as ``pruning`` takes it away.

    Ranges are pairs of positive numbers, searched on a logarithmic scale; two integers give integers. The first
    trial has the case's own settings; the others have quasi-random ones (Halton 1960, scrambled). Trials run on
    ``network`` or on that of the case, without failure, those of a search also without straggler and jitter.
    Raises ValueError for numbers out of range.
    """

    trials: int = 0
    rates: tuple[float, ...] = ()
    batches: tuple[int, ...] = ()
    like: dict[str, Any] | None = field(default=None, hash=False)
    factor: float | None = None
    seed: int | None = None
    learning_rate: tuple[float, float] | None = None
    optimizer: Mapping[str, Any] = field(default_factory=dict, hash=False)
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)
    network: str = ""

    def __post_init__(self) -> None:
        if self.network and self.network not in NETWORKS:
            raise ValueError(f"network: unknown {self.network!r}{nearest(self.network, NETWORKS)}")
        if self.grid:
            self._check_grid()
            return
        for name in ("seed", "like", "factor"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: is for the trials of a grid; give rates, or leave {name} out")
        if not 1 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials: must be from 1 to {MAX_TRIALS}, not {self.trials}, or give rates and seed")
        for (_, name), ends in self.ranges.items():
            numbers = isinstance(ends, list | tuple) and all(type(end) in {int, float} for end in ends)
            if not numbers or len(ends) != 2 or not 0 < ends[0] < ends[1] < math.inf:
                raise ValueError(f"{name}: must be two numbers, 0 < low < high, not {ends!r}")
        if not self.ranges:
            raise ValueError("learning_rate: give a range of it, or of a setting of optimizer or training")

    def _check_grid(self) -> None:
        name = "rates" if self.rates else "batches"
        for other in ("trials", "learning_rate", "optimizer", "training", *(["batches"] if self.rates else [])):
            if getattr(self, other):
                one = f"a grid has one trial for each of its {name}"
                raise ValueError(f"{other}: {one}; leave {other} or {name} out")
        kinds, noun = ({int, float}, "numbers") if self.rates else ({int}, "integers")
        numbers = all(type(value) in kinds and 0 < value < math.inf for value in self.grid)
        if not numbers or not 3 <= len(self.grid) <= MAX_TRIALS or [*self.grid] != sorted({*self.grid}):
            wrong = f"not {shortened([*self.grid])}"
            raise ValueError(f"{name}: must be 3 to {MAX_TRIALS} ascending positive {noun}, {wrong}")
        if self.seed is None or self.seed < 0:
            raise ValueError("seed: give the trials a seed from 0 on that the case has not, such as 101")
        if self.factor is not None and not (self.like and self.rates and 0 < self.factor < math.inf):
            raise ValueError("factor: must be a positive number beside rates and like")

    @property
    def grid(self) -> tuple[float, ...]:
        """Values of the trials of a grid; empty for a search."""
        return self.rates or self.batches

    @property
    def grid_key(self) -> str:
        """Key of the case that the trials of a grid vary."""
        return "global_batch" if self.batches else "learning_rate"

    @property
    def like_text(self) -> str | None:
        """The keys of ``like`` and the factor as a column states them; None without them."""
        pairs = ", ".join(f"{name}={label(value)}" for name, value in (self.like or {}).items())
        return f"{pairs}; x {self.factor:g}" if self.factor is not None else pairs or None

    @property
    def ranges(self) -> dict[tuple[str, str], Any]:
        """Bounds of all settings that are searched, by key of the case and name of the setting."""
        own = {("learning_rate", "learning_rate"): self.learning_rate} if self.learning_rate else {}
        parts = (("optimizer", self.optimizer), ("training", self.training))
        return own | {(key, name): ends for key, settings in parts for name, ends in settings.items()}

    def points(self) -> list[dict[tuple[str, str], float]]:
        """Return the settings of the trials of a grid, or of a search's trials after the first."""
        from scipy.stats import qmc  # late: ranks do not need it

        if self.grid or self.trials == 1:
            return [{(self.grid_key, self.grid_key): value} for value in self.grid]
        rows = qmc.Halton(len(self.ranges), seed=SEED).random(self.trials - 1)
        return [
            {
                setting: _between(ends[0], ends[1], at)
                for (setting, ends), at in zip(self.ranges.items(), row, strict=True)
            }
            for row in rows
        ]


def _between(low: float, high: float, at: float) -> float:
    """Return the number at ``at`` in [0, 1] between two, on a logarithmic scale."""
    if isinstance(low, int) and isinstance(high, int):
        value = low * math.exp(at * math.log((high + 1) / low))
        return min(high, int(value))
    return float(low * (high / low) ** at)


@dataclass(frozen=True, kw_only=True)
class TrainSpec(StepSpec):
    """Keys of a training case; properties raise ValueError for settings that cannot be."""

    model: Choice = key(folder="models", role="problem")
    dataset: Choice = key(folder="datasets", role="problem")
    backend: Choice = key(Choice("backends", "numpy"), folder="backends", role="problem")
    dtype: str = key("float32", choices=("float32", "float64", *HALF), role="problem")
    training: Choice = key(Choice("training", "synchronous"), folder="training", role="method")
    aggregation: Choice = key(Choice("aggregation", "ring"), folder="aggregation", role="method")
    compression: Choice = key(
        Choice("compression", "none"), folder="compression", around=ExchangeSettings, role="method"
    )
    optimizer: Choice = key(Choice("optim", "sgd"), folder="optim", role="method")
    schedule: Choice = key(Choice("schedules", "constant"), folder="schedules", role="method")
    learning_rate: float = key(least=0, role="method")
    ranks: int = key(least=1, most=MAX_RANKS, role="scale")
    global_batch: int | None = key(None, least=1, role="scale")
    batch_per_rank: int | None = key(None, least=1, role="scale")
    shares: Shares | None = key(None, table=Shares)
    mesh: Mesh | None = key(None, table=Mesh, role="method", column="parallelism")
    partition: str = key(EPOCHS, choices=(EPOCHS, REPLICAS))
    validation: float = key(0.0, least=0, most=0.9)
    epochs: float | None = key(None, above=0, role="problem")
    steps: int | None = key(None, least=1, most=MAX_STEPS, role="problem", column="planned_steps")
    target_accuracy: float | None = key(None, least=0, most=1, role="problem")
    stop_at_target: bool = key(default=False, role="sampling")
    evaluate_every: float = key(1, least=1e-6, role="sampling")
    sharpness: int = key(0, least=0, role="sampling")
    seed: int = key(1, least=0, role="scale")
    prefetch: int = key(2, least=0, most=MAX_AHEAD)
    threads: int = key(1, least=1, most=MAX_THREADS, role="problem", column="threads_per_rank")
    trace: str = key("events", choices=("events", "steps", "alternating"))
    straggler: Straggler | None = key(None, table=Straggler)
    failure: Failure | None = key(None, table=Failure)
    quantization: Quantization | None = key(None, table=Quantization)
    pruning: Pruning | None = key(None, table=Pruning)
    tune: Tuning | None = key(None, table=Tuning, role="method", column="tuning", also="tuning_like")
    network: str | None = key(None, choices=tuple(NETWORKS), role="machine")
    topology: Choice | None = key(None, folder="topologies", around=Site, role="machine")
    ranks_per_host: int = key(1, least=1, most=MAX_RANKS, role="machine")
    device: str | None = key(None, choices=tuple(DEVICES), role="machine")
    flops: float | None = key(None, above=0, role="machine")
    times: str | None = key(None, role="machine")
    jitter: float = key(0.0, least=0, most=MAX_JITTER, role="machine")

    def like(self, settings: Mapping[str, Any]) -> "TrainSpec":
        """Return the case with keys as ``tune.like`` gives them. Raises ValueError for a wrong one."""
        declared, values = keys(TrainSpec), dict[str, Any]()
        for name, setting in settings.items():
            if name not in declared:
                raise ValueError(f"like: {name}: unknown key{nearest(name, declared)}")
            values[name], wrong = read(declared[name], setting)
            if wrong:
                raise ValueError(f"like: {name}: {wrong}")
            pairs = (pair for pair in EITHER_OR if name in pair)
            values |= {other: None for pair in pairs for other in pair if other not in settings}
        return replace(self, **values)

    @cached_property
    def data(self) -> Dataset:
        """The dataset."""
        return opened(self.dataset, self.validation)

    @property
    def trained_layers(self) -> Sequence[Layer]:
        """The model with rounded and pruned weights, where the case wants them."""
        layers = self.layers if self.quantization is None else quantized(self.layers, self.quantization)
        return layers if self.pruning is None else pruned(layers, self.pruning)

    @property
    def kernels(self) -> Backend:
        """The library that computes."""
        return backend(self.backend.name, **self.backend.settings)

    @cached_property
    def stage_bytes(self) -> tuple[tuple[int, int], ...]:
        """Bytes of each stage's parameters, and of the outputs of its layers for all images in flight."""
        size, own = (np.dtype(kind(self.dtype)).itemsize for kind in (master, storage_dtype))
        images = -(-self.most_images // self.microbatches)
        sizes, shape = [], tuple(self.shape)
        for stage, part in enumerate(self.parts):
            weight = volumes(self.layers[part], shape, images)
            flying = self.strategy.in_flight(stage, self.stages, self.training.in_full)
            sizes.append((size * weight.parameters, flying * own * weight.activation_bytes // FLOAT_BYTES))
            for layer in self.layers[part]:
                shape = layer.output(shape)
        return tuple(sizes)

    @cached_property
    def workers(self) -> range:
        """Ranks that share a batch."""
        if self.stages > 1:
            return range(0, self.ranks, self.stages)
        replicas = self.strategy.workers(self.replicas, self.training.in_full)
        return range(replicas.start * self.model_ranks, replicas.stop * self.model_ranks)

    @cached_property
    def images_per_step(self) -> int:
        """Images of a step, of all workers together."""
        return self.global_batch or (self.batch_per_rank or 0) * len(self.workers)

    @property
    def images(self) -> int:
        """Images of the batch of a copy of the network, of which the shares are equal."""
        return self.images_per_step // self.copies

    @property
    def batch_key(self) -> str:
        """Key that gives the batch."""
        return "batch_per_rank" if self.global_batch is None else "global_batch"

    @property
    def train_images(self) -> int:
        """Images of the training split."""
        return len(self.data.train)

    @property
    def sharing(self) -> Shares:
        """Shares of the workers in the images of a step."""
        return self.shares or EQUAL

    @property
    def most_images(self) -> int:
        """Images of the largest share of a batch."""
        return int(np.diff(bounds(self.images_per_step, len(self.workers), self.sharing)).max())

    @property
    def fewest_images(self) -> int:
        """Images of the smallest share of a batch."""
        return int(np.diff(bounds(self.images_per_step, self.copies, self.sharing)).min())

    @cached_property
    def planned_steps(self) -> int:
        """Steps of the whole training."""
        if self.steps is not None:
            return self.steps
        per_epoch = self.train_images // self.images_per_step
        return max(1, math.ceil(float(self.epochs or 0) * per_epoch - 1e-9))

    @cached_property
    def rates(self) -> Callable[[int, int], float]:
        """The schedule: learning-rate factor by (step, total steps). Raises TypeError, too."""
        return schedule(self.schedule.name, **self.schedule.settings, global_batch=self.images_per_step)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.learning_rate * self.rates(step, self.planned_steps)

    def update_rule(self, replica: Replica) -> Optimizer:
        """See :class:`hpcdl.cases.keys.step_spec.StepSpec`."""
        update: Optimizer = self.optimizer.make()
        # bfloat16 has float32's exponents
        return LossScaling(update, replica) if self.dtype == "float16" else update

    def inputs(self, replica: Replica, group: ModelGroup | None) -> Inputs:
        """See :class:`hpcdl.cases.keys.step_spec.StepSpec`."""
        return Inputs(
            replica,
            self.data,
            self.images_per_step,
            self.planned_steps,
            self.seed,
            shares=self.sharing,
            partition=self.partition,
            prefetch=self.prefetch,
            group=group,
        )

    def evaluation(self, inputs: Inputs, journal: Journal) -> Evaluation:
        """See :class:`hpcdl.cases.keys.step_spec.StepSpec`."""
        return Evaluation(
            inputs,
            journal,
            every=self.evaluate_every,
            target_accuracy=self.target_accuracy,
            stop_at_target=self.stop_at_target,
            independent=self.independent,
        )
