"""Predicted training steps: the strategy itself in virtual time, with size-only gradients.

Compute times come from a measured run, or from arithmetic and a rate; see :mod:`hpcdl.cases.keys.compute_times`.
Input, forward and backward scale with the images per rank, so times of one batch predict strong and weak scaling.
Encoders, decoders and sums of compressed gradients have the costs that they are measured at on this machine.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.analysis.run.launches import throughput_of
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Interval, mean_interval, median_interval
from hpcdl.cases.keys.compute_times import ComputeTimes
from hpcdl.cases.keys.key import about
from hpcdl.cases.keys.scheme import check_lengths
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.parts.operations import operation
from hpcdl.cases.parts.step_simulation import Conditions, VirtualStep, costs_of, virtual_step
from hpcdl.data.parts.dataset import DataError
from hpcdl.fabric.network import Network
from hpcdl.nn.geometry import master
from hpcdl.prediction.fitting import uncertainty
from hpcdl.prediction.network_file import NetworkEstimate
from hpcdl.prediction.programs import network_of, predicted_record, scheme_traits
from hpcdl.training.parts.bucketing import bucket_bytes

Times = Callable[[Record, Any], ComputeTimes]
"""Returns the compute times of a record's case, given its spec on the ranks. ValueError if they are unknown."""

WITHIN: Final = 0.05
"""Half of the 95 % interval over simulated steps / predicted time, at most."""


def predicted_steps(
    records: Sequence[Record],
    times: Times,
    estimate: NetworkEstimate,
    ranks: Sequence[int] = (),
    source: Sequence[Record] = (),
    disturbed: Mapping[str, str] = MappingProxyType({}),
    show: Callable[[str], object] = lambda _: None,
    jitter: float | None = None,
) -> tuple[list[Record], list[str]]:
    """Return predictions of the training cases among ``records``, and the cases without one, with reasons.

    ``ranks`` default to each case's own. ``source``: records of the run that the network was fitted to;
    ``disturbed``: disturbances of the cases whose compute times may be used. ``show`` gets a line before each
    simulation. ``jitter``: coefficient of variation of a rank's computing in a step; by default that of a
    simulated case's settings, or of the measured case whose compute times are used.
    """
    buckets = {record.ranks: int(record.bucket_bytes) for record in source if record.bucket_bytes}
    groups: dict[Any, dict[int, list[Record]]] = {}
    for record in records:
        if record.is_training:
            # also on one rank cases differ by aggregation, because predictions may be for more ranks
            groups.setdefault(record.configuration(), {}).setdefault(record.ranks, []).append(record)
    rows, left_out = list[Record](), list[str]()
    for cases in groups.values():
        first = cases[min(cases)][0]
        name = f"{first.training} with {first.aggregation}"
        try:
            costs = _arithmetic_costs(first)
        except (ValueError, TypeError, DataError, OSError) as error:
            left_out.append(f"{name}: {error}")
            continue
        farthest = max((p for p in cases if _measured(cases[p], "step_seconds")), default=None)
        for p in ranks or sorted(cases):
            show(f"simulating {name} on {p} ranks")
            here = cases.get(p, [])
            like = here[0] if here else first
            try:
                spec = replace(like.spec, ranks=p)
                network, work = network_of(first, estimate.network, p), times(first, spec)
                images, bucket = _images(like, spec), _bucket(here, first, p, estimate.network, buckets)
                # the ranks of a replay sleep for equal times unless it says so
                usual = spec.jitter or (0.0 if like.kind == "replay" else work.jitter)
                conditions = Conditions(network, work, images, bucket, costs, usual if jitter is None else jitter)
                row = predicted_step(here, like, spec, conditions, estimate, farthest)
            except (ValueError, TypeError) as error:
                left_out.append(f"{name} on {p} ranks: {error}")
            else:
                row.disturbed = row.disturbed or disturbed.get(work.source)
                rows.append(row)
    return rows, left_out


def _bucket(
    here: Sequence[Record], like: Record, ranks: int, network: Network, measured: Mapping[int, int]
) -> int | None:
    """Return the bucket size of the case on ``ranks`` ranks (bytes); None if it does not fit its buckets.

    In this order: the size that the case measured; the size of other cases on this network (``measured``, by
    ranks), in proportion to the ranks; the size from the network's alpha and beta. ValueError if these are 0 and
    the case does not set a size.
    """
    strategy = like.spec.training
    within = network.host(ranks - 1) == network.host(0)
    fitted = _measured(here, "bucket_bytes")
    if fitted or ranks == 1:
        return int(fitted) if fitted else None
    is_set = strategy.settings.get("bucket_bytes") is not None
    if is_set or "bucket_bytes" not in registry.settings_of(strategy.find()) or (within and like.kind != "replay"):
        return None
    if measured:
        nearest = min(measured, key=lambda p: (abs(p - ranks), p))
        return -(-measured[nearest] * ranks // nearest)
    alpha, beta = network.ring_costs(ranks)
    if not (alpha > 0 and beta > 0):
        raise ValueError("its bucket size is unknown: the network's alpha or beta is 0")
    return bucket_bytes(alpha, beta, ranks)


def unequal(record: Record) -> dict[str, str | None]:
    """Return the keys with which the ranks or the steps of a case differ."""
    return {"straggler": record.straggler, "failure": record.failure, "shares": record.shares}


def _arithmetic_costs(record: Record) -> dict[str, float]:
    """Return the cost parameters of the arithmetic in a case's exchanges.

    Raises ValueError if sizes alone do not determine the time of a step.
    """
    spec, aggregates = record.spec, record.spec.strategy.aggregates
    for key, given in unequal(record).items():
        if given:
            raise ValueError(f"{key}: ranks or steps of the case differ")
    if aggregates and scheme_traits(record).adaptive:
        raise ValueError(f"{spec.aggregation.name} chooses its scheme by measurements at run time")
    spec.strategy.cycle(spec.training.in_full)
    if spec.plan is None:
        return {}
    if spec.mesh is not None or not aggregates:
        where = "between two ranks" if spec.mesh is None else "on a mesh"
        raise ValueError(f"compression {spec.compression}: its arithmetic {where} has no known cost")
    with about("compression"):
        check_lengths(spec.plan)
    return costs_of(spec)


def _images(record: Record, spec: StepSpec) -> int:
    """Return the images of a copy of the network, in the case's scaling. ValueError: fewer images than copies."""
    spec.strategy.check(spec.ranks // spec.group_ranks, spec.training.in_full)
    batch = record.global_batch or 0
    if record.scaling == "weak":
        return spec.model_ranks * int(record.batch_per_rank or batch // record.ranks)
    if spec.copies > batch:
        raise ValueError(f"a global batch of {batch} images is less than one per rank")
    return -(-batch // spec.copies)


def predicted_step(
    here: Sequence[Record],
    like: Record,
    spec: StepSpec,
    conditions: Conditions,
    estimate: NetworkEstimate,
    farthest: int | None,
) -> Record:
    """Return the prediction of a case; ``here`` are its records on as many ranks, one a seed.

    ``farthest``: most ranks on which the case was measured, if the network was not fitted.
    """
    jitter, began = conditions.jitter, perf_counter()
    equal = spec.strategy.lockstep and not jitter
    # In lock-step without jitter every simulated step is the same. Else all ranks together simulate 256 steps, and
    # at most 4096 where the interval needs more.
    counted = 1 if equal else min(32, max(8, 256 // spec.ranks))
    batch = conditions.images * spec.copies if like.scaling == "weak" else int(like.global_batch or 0)
    step = virtual_step(spec, conditions, counted)
    interval, staleness = _timed(step, batch)
    if jitter and not (half := _half(interval)) <= WITHIN:
        wanted = counted * (half / WITHIN) ** 2 if half < math.inf else math.inf
        counted = int(min(wanted, max(counted, 4096 // spec.ranks)))
        interval, staleness = _timed(virtual_step(spec, conditions, counted), batch)
    seconds = interval.value
    margin, undetermined = _uncertainty(spec, conditions, estimate, str(like.aggregation), seconds)
    return predicted_record(
        like,
        spec.ranks,
        estimate,
        farthest,
        seconds,
        (0.0 if equal else _half(interval), margin),
        global_batch=batch,
        **{name: _measured(here, name) for name in ("step_seconds", "images_per_second", "staleness_mean")},
        predicted_images_per_second=batch / seconds if seconds else None,
        predicted_staleness_mean=staleness,
        jitter=jitter,
        lockstep=spec.strategy.lockstep,
        compute_seconds=_compute_seconds(spec, conditions),
        compute_times=conditions.times.source or None,
        bucket_bytes=conditions.bucket,
        disturbed=next((record.disturbed for record in here if record.disturbed), None),
        undetermined=undetermined,
        simulated_ranks=step.simulated_ranks,
        simulation_seconds=perf_counter() - began,
    )


def _timed(step: VirtualStep, batch: int) -> tuple[Interval, float | None]:
    """Return the time of a global batch and the mean staleness, as they are measured; None without updates.

    ValueError if the workers take too few steps together.
    """
    if len(step.cycles):
        return median_interval(step.cycles), None
    throughput = throughput_of(step.steps, step.unsettled, batch)
    if throughput is None:
        raise ValueError("too few of its steps overlap to measure its throughput")
    inside = (step.updates["time"] >= throughput.begin) & (step.updates["time"] <= throughput.end)
    stale = step.updates["staleness"][inside]
    return mean_interval(throughput.seconds), float(stale.mean()) if len(stale) else None


def _half(interval: Interval) -> float:
    """Return half of an interval of a logarithm; infinite if a bound is unknown or not positive."""
    return math.log(interval.high / interval.low) / 2 if interval.low > 0 else math.inf


def _compute_seconds(spec: StepSpec, conditions: Conditions) -> float:
    """Return the time of a rank's work in a step; in a pipeline, that of all stages together."""
    work, images, updates = conditions.times, conditions.images, not spec.strategy.updates_shards
    every = spec.times_of_ranks(work, images) if spec.divisions else [work]
    return max(times.step_seconds(images, updates=updates) for times in every)


def _uncertainty(
    spec: StepSpec, conditions: Conditions, estimate: NetworkEstimate, scheme: str, step: float
) -> tuple[float, bool]:
    """Return :func:`hpcdl.prediction.fitting.uncertainty` of a ``step`` (s) with a sum for each of its buckets."""
    if estimate.certainty is None or spec.ranks == 1 or spec.independent:
        return 0.0, False
    whole, dtype = spec.gradient_bytes, master(spec.dtype)
    pieces = -(-whole // min(conditions.bucket or whole, whole))
    length = -(-whole // np.dtype(dtype).itemsize // pieces)
    # a sparse scheme sums entries, of which there are fewer
    sparse = spec.plan is not None and spec.plan.aggregation.sparse
    name, settings = ("ring", {}) if sparse else (spec.aggregation.name, spec.aggregation.settings)
    program = operation("allreduce", name, settings, spec.ranks, length, dtype)
    return uncertainty(program, estimate, scheme, pieces, step)


def _measured(records: Sequence[Record], name: str) -> float | None:
    """Return the median over seeds; None without measurements."""
    measured = [record for record in records if not record.network and not record.error]
    values = [value for record in measured if (value := getattr(record, name))]
    return median(values) if values else None
