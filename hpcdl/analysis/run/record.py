"""Record of a case: its description and its measured numbers, with the columns of ``--json``.

A trace describes a case by fields, which :meth:`Record.of` reads. The analysis adds the measured numbers, and
sections ask attributes. What tells cases apart follows from the roles of their keys
(:data:`hpcdl.cases.keys.key.Role`).
``hpcdl/report/README.md`` describes each column, and ``schema.json`` has the same types.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from hpcdl.cases.keys.key import Role, restored
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.keys.suite_tables import columns_with, kinds, module_of, role_of
from hpcdl.registry import label, parts
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.training.parts.traits import BY_STRATEGY

ANY: Final = "any"
"""In the place of an aggregation: it makes no difference."""

Key = tuple[object, ...]
Mark = Literal["simulated", "emulated", "oversubscribed", "disturbed", "diverged", "extrapolated", "undetermined"]
"""Reservation that travels with a number."""
FAR: Final = 4
"""Ranks of a prediction by the most that were measured, from which on it is extrapolated."""


def _median() -> Any:
    """Return a field that is recorded with each launch of a case, of which the record has the median."""
    return field(default=None, metadata={"median": True})


@dataclass(kw_only=True, eq=False)
class Record:
    """One case; None: unknown, or it does not apply. The order is that of ``--json``."""

    suite: str | None = None
    case: str | None = None
    kind: str = "train"
    model: str | None = None
    dataset: str | None = None
    backend: str | None = None
    dtype: str | None = None
    training: str | None = None
    aggregation: str | None = None
    compression: str | None = None
    optimizer: str | None = None
    ranks: int = 1
    nodes: int | None = None
    threads_per_rank: int | None = None
    global_batch: int | None = None
    scaling: str | None = None
    steps: int | None = None
    step_seconds: float | None = None
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    images_per_second: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    compute_seconds: float | None = None
    input_seconds: float | None = None
    exposed_communication_seconds: float | None = None
    waiting_seconds: float | None = None
    transfer_seconds: float | None = None
    late_rank: int | None = None
    bytes_sent_per_rank: float | None = None
    messages_per_rank: float | None = None
    compression_ratio: float | None = None
    staleness_mean: float | None = None
    staleness_max: float | None = None
    final_loss: float | None = None
    final_accuracy: float | None = None
    target_accuracy: float | None = None
    seconds_to_target: float | None = None
    samples_to_target: int | None = None
    epochs_to_target: float | None = None
    collective: str | None = None
    message_bytes: int | None = None
    time_p50_seconds: float | None = None
    time_p99_seconds: float | None = None
    algbw_bytes_per_second: float | None = None
    busbw_bytes_per_second: float | None = None
    correct: bool | None = None
    predicted_seconds: float | None = None
    predicted_low_seconds: float | None = None
    predicted_high_seconds: float | None = None
    predicted_images_per_second: float | None = None
    predicted_staleness_mean: float | None = None
    times_the_measured_ranks: float | None = None
    undetermined: bool | None = None
    library_decides: bool | None = None
    compute_times: str | None = None
    schedule: str | None = None
    learning_rate: float | None = None
    batch_per_rank: int | None = None
    epochs: float | None = None
    planned_steps: int | None = None
    pattern: str | None = None
    start: str | None = None
    placement: str | None = None
    seed: int | None = None
    draw: int | None = None
    parallelism: str | None = None
    shares: str | None = None
    straggler: str | None = None
    straggler_rank: int | str | None = None
    straggler_factor: float | None = None
    straggler_pause_seconds: float | None = None
    straggler_pause_share: float | None = None
    failure: str | None = None
    process_failure: str | None = None
    network: str | None = None
    ranks_per_host: int | None = None
    device: str | None = None
    flops: float | None = None
    times: str | None = None
    jitter: float | None = None
    time_scale: float | None = None
    digest: str | None = None
    lockstep: bool | None = None
    independent: bool | None = None
    served: bool | None = None
    gradients_in_flight: int | None = None
    system: str | None = None
    image_shape: str | None = None
    dataset_source: str | None = None
    dataset_digest: str | None = None
    parameters: int | None = None
    environment_key: str | None = None
    launches: int = 0
    launches_left_out: int = 0
    stolen: float = 0.0
    base_ranks: int | None = None
    base_aggregation: str | None = None
    near_linear: bool | None = None
    near_linear_p: float | None = None
    launch_seconds: Sequence[float] | None = None
    base_launches: int | None = None
    base_step_seconds: float | None = None
    base_disturbed: bool | None = None
    exposed_communication_seconds_low: float | None = None
    exposed_communication_seconds_high: float | None = None
    ceiling_disturbed: bool | None = None
    load_balance: float | None = None
    communication_efficiency: float | None = None
    encode_seconds: float | None = None
    decode_seconds: float | None = None
    residual_bytes: int | None = None
    residual_norm: float | None = None
    residual_norm_largest: float | None = None
    residual_to_gradient_q1: float | None = None
    residual_to_gradient_q2: float | None = None
    residual_to_gradient_q3: float | None = None
    residual_to_gradient_q4: float | None = None
    noise_scale_q1: float | None = None
    noise_scale_q2: float | None = None
    noise_scale_q3: float | None = None
    noise_scale_q4: float | None = None
    discarded_share: float | None = None
    train_accuracy: float | None = None
    sharpness: float | None = None
    smallest_eigenvalue: float | None = None
    replica_drift: float | None = None
    tuning: int | None = None
    tuned: str | None = None
    tuning_images: int | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    gradient_cosine: float | None = None
    gradient_error: float | None = None
    bits_per_entry: float | None = None
    entropy_bits_per_entry: float | None = None
    bucket_bytes: int | None = None
    chosen: str | None = None
    stages: int | None = None
    microbatches: int | None = None
    bubble_share: float | None = None
    activation_bytes_per_rank: int | None = None
    memory_bytes_per_rank: int | None = None
    diverged_step: int | None = None
    diverged_rank: int | None = None
    best_accuracy: float | None = None
    samples_before_target: float | None = None
    staleness_expected: float | None = None
    workers: int | None = None
    gradients_per_update: float | None = None
    consensus_distance: float | None = None
    modelled_compute_seconds: float | None = None
    time_p50_low_seconds: float | None = None
    time_p50_high_seconds: float | None = None
    time_p95_seconds: float | None = None
    time_max_seconds: float | None = None
    operations: float | None = None
    copied: bool | None = None
    same_bits: bool | None = None
    start_error_seconds: float | None = None
    start_lead_seconds: float | None = None
    starts_late: float | None = None
    from_first_arrival_seconds: float | None = _median()
    from_last_arrival_seconds: float | None = _median()
    concurrent: str | None = None
    communicators: int | None = None
    alone_p50_seconds: float | None = _median()
    alone_p99_seconds: float | None = _median()
    beside_p50_seconds: float | None = _median()
    beside_p99_seconds: float | None = _median()
    concurrent_alone_p50_seconds: float | None = _median()
    concurrent_alone_p99_seconds: float | None = _median()
    concurrent_beside_p50_seconds: float | None = _median()
    concurrent_beside_p99_seconds: float | None = _median()
    simulation_seconds: float | None = None
    simulated_ranks: int | None = None
    bytes_sent_per_host: float | None = None
    late_seconds: float | None = None
    clock_error_seconds: float | None = None
    error: str | None = None
    disturbed: str | None = None
    emulated: bool | None = None
    oversubscribed: bool | None = None
    warmup_steps: int = 0
    measured_steps: int = 0
    ranks_recorded: int = 0

    launch: int | None = None
    """Number of the launch, from 1, among several that are pooled."""
    settings: JsonMapping = field(default_factory=dict)
    """Settings that differ from their defaults, by key of the suite."""
    further: JsonMapping = field(default_factory=dict)
    """Fields of a user's own kind of case, or of another program."""

    @classmethod
    def of(cls, described: JsonMapping) -> Record:
        """Return the record of a case that a trace or a suite describes by fields."""
        known = {name: value for name, value in described.items() if name in COLUMNS and value is not None}
        own = {name: value for name, value in described.items() if name not in COLUMNS}
        given = _parsed(str(own.pop("settings", None) or "{}"))
        if described.get("warmup_steps") is None and known.get("kind", "train") == "train":
            known["warmup_steps"] = 2  # first touch of memory, first connection of peers
        record = cls(**known, settings=given, further=own)
        if record.scaling is None and (record.batch_per_rank or record.global_batch) is not None:
            record.scaling = "strong" if record.batch_per_rank is None else "weak"
        if record.epochs is None and record.planned_steps is None:  # fewer are taken if it stops at its target
            record.planned_steps = record.steps
        return record

    @property
    def row(self) -> JsonObject:
        """The columns by name, in their order."""
        return {**{name: getattr(self, name) for name in COLUMNS if name != "launch"}, **self.further}

    @cached_property
    def spec(self) -> Any:
        """The case's keys. Raises ValueError for a kind or a key that this version does not know."""
        return _restored(self.kind, json.dumps(dict(self.settings)))

    @property
    def described(self) -> Record:
        """The case without measured numbers and without its scale: problem, method and settings."""
        names = ("suite", "case", "kind", "scaling", *columns_with("problem"), *columns_with("method"))
        known = {name: getattr(self, name) for name in names if name in COLUMNS}
        return Record(**known, settings=self.settings)

    @property
    def is_training(self) -> bool:
        """True if its steps are those of a training, measured or replayed."""
        return self.kind in kinds() and issubclass(module_of(self.kind).SPEC, StepSpec)

    @property
    def is_exact(self) -> bool:
        """True if its times are simulated, and none of them is random."""
        return bool(self.network) and not self.jitter and not 0 < (self.straggler_pause_share or 0) < 1

    @property
    def keeps_step(self) -> bool:
        """True if ranks take every step together, so that the slowest of them determines its time.

        The time per step of other strategies takes many steps: see :mod:`hpcdl.analysis.run.launches`.
        """
        return self.lockstep is not False

    @property
    def marks(self) -> list[Mark]:
        """Reservations about the numbers: how they came about, and what spoils them."""
        known: dict[Mark, bool] = {
            "simulated": bool(self.network),
            "emulated": bool(self.emulated),
            "oversubscribed": bool(self.oversubscribed),
            "disturbed": bool(self.disturbed),
            "diverged": self.diverged_step is not None,
            "extrapolated": (self.times_the_measured_ranks or 0) > FAR,
            "undetermined": bool(self.undetermined),
        }
        return [mark for mark, holds in known.items() if holds]

    @property
    def strategy(self) -> str:
        """The name of the strategy, without its settings; empty where there is none."""
        return parts(self.training or "")[0]

    @property
    def batch(self) -> float | None:
        """Images of a global batch; None if unknown."""
        if self.global_batch is not None:
            return float(self.global_batch)
        return None if self.batch_per_rank is None else float(self.batch_per_rank) * self.ranks

    def stated(self, column: str) -> Any:
        """Return the value of a column; of a key without a column its setting, as text."""
        if column in COLUMNS:
            return getattr(self, column)
        return label(self.settings[column]) if column in self.settings else None

    def problem(self, *ignored: str) -> Key:
        """Return the key of the table to which the case belongs: it is equal for all methods at all scales.

        It contains the global batch (strong) or the batch per rank (weak), and the steps unless the suite gives
        epochs. ``ignored``: conditions that may differ.
        """
        batch = {"strong": self.global_batch, "weak": self.batch_per_rank}.get(self.scaling or "")
        return (
            self.suite,
            self.kind,
            tuple(map(self.stated, columns_with("problem"))),
            self.scaling,
            batch,
            self.conditions(*ignored),
        )

    @property
    def method(self) -> Key:
        """The method: strategy, parallelism, aggregation, compression, optimizer, schedule and rate.

        One rank exchanges nothing, so that every aggregation is the same program there; a compressor may still
        cost time and lose digits.
        """
        alone = self.ranks == 1 and self.aggregation != BY_STRATEGY
        return tuple(
            ANY if alone and name == "aggregation" else self.stated(name) or "none"
            for name in columns_with("method")
        )

    def configuration(self, *ignored: str) -> Key:
        """Return everything but ranks, nodes, seed and launch, and the settings that are ``ignored``.

        Cases whose keys differ are apart, although a column may state a key's consequence, and not the key.
        """
        method = tuple(self.stated(name) or "none" for name in columns_with("method"))
        return (self.problem(*ignored), method, self._given({"problem", "method", "sampling"}, ignored))

    def conditions(self, *ignored: str) -> tuple[tuple[str, str], ...]:
        """Return key and value of each given setting that changes the measured numbers and is in no column."""
        return self._given({"condition", "machine"}, ignored)

    def _given(self, roles: Collection[Role], ignored: Collection[str]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, label(value))
            for name, value in sorted(self.settings.items())
            if name not in ignored and role_of(name) in roles
        )

    @property
    def words(self) -> dict[str, str]:
        """The conditions in words, by subject."""
        given, subjects = self.settings, dict[str, str]()
        if self.network:
            words = [f"simulated on {self.network}", f"{given.get('ranks_per_host', 1)} a host", _times(given)]
            words[1:1] = [label(given["topology"])] if given.get("topology") else []
            words += [f"jitter {_number(given['jitter'])}"] if given.get("jitter") else []
            subjects["simulated"] = ", ".join(filter(None, words))
        elif times := _times(given):
            scale = f" x {_number(given['time_scale'])}" if "time_scale" in given else ""
            subjects["replayed"] = f"replayed with {times}{scale}"
        for name, text in (("shares", self.shares), ("straggler", self.straggler), ("failure", self.failure)):
            if text:
                subjects[name] = text if name == "straggler" else f"{name} {text}"
        others = self.conditions(*columns_with("machine"), *subjects)
        return subjects | {name: f"{name}={value}".rstrip("=") for name, value in others}


COLUMNS: Final = tuple(one.name for one in fields(Record) if one.name not in {"settings", "further"})
MEDIANS: Final = tuple(one.name for one in fields(Record) if "median" in one.metadata)
"""Columns that have the median over launches of what each launch has recorded."""


@lru_cache(maxsize=4096)
def _parsed(text: str) -> JsonObject:
    return dict(json.loads(text))


@lru_cache(maxsize=1024)
def _restored(kind: str, settings: str) -> Any:
    return restored(module_of(kind).SPEC, json.loads(settings))


def _times(given: JsonMapping) -> str:
    """Return where the times of the work are from; empty where it is measured."""
    if given.get("flops"):
        return f"{_number(given['flops'])} FLOP/s"
    source = given.get("times") or given.get("device")
    return f"{source}'s times" if source else ""


def _number(value: object) -> str:
    """Return a number in short; a record of another program may have anything in its place."""
    return f"{value:g}" if isinstance(value, (int, float)) else label(value)
