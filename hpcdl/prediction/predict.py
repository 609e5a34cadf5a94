"""Predict the cases of a suite or a run on a network by simulating their programs.

The network is a preset, in a file, or fitted to a run's measurements; see :mod:`hpcdl.prediction.fitting`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from hpcdl import registry, suite
from hpcdl.analysis.run.disturbance import marked
from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import AmbiguousCaseError, read_pooled
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import records
from hpcdl.cases.keys.compute_times import ComputeTimes, Recorded
from hpcdl.cases.keys.key import MAX_RANKS
from hpcdl.cases.keys.shipped_times import CORE, shipped
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.keys.suite_tables import suites
from hpcdl.fabric.network import NETWORKS, Network
from hpcdl.prediction.fitted import Fitted, fitted, with_own_cores
from hpcdl.prediction.fitting import CannotFitError, bounds, uncertainty
from hpcdl.prediction.network_file import Certainty, NetworkFileError, PricedNetwork, load_network
from hpcdl.prediction.parallelism import Parallelism, parallelism
from hpcdl.prediction.programs import (
    check_hosts,
    measured_programs,
    program_of,
    scheme_traits,
    simulate,
    with_shared_ports,
)
from hpcdl.prediction.steps import predicted_steps
from hpcdl.suite import UsageError
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.run import Run


@dataclass(frozen=True)
class Prediction:
    """Predicted times: records with ``predicted_seconds``, and with measured times where available."""

    network: Network
    fitted: Fitted | None
    """The fit, if the network was fitted in this call."""
    certainty: Certainty | None
    """Uncertainty of a fitted network's parameters, from this fit or from a file."""
    rows: list[Record]
    """Predictions of collectives and exchanges."""
    steps: list[Record]
    """Predictions of training steps."""
    meshes: list[Parallelism] = field(default_factory=list)
    """Parallelism of the trainings, if asked for."""
    left_out: list[str] = field(default_factory=list)
    """Cases without a prediction, with reasons."""
    papers: list[str] = field(default_factory=list)
    """Papers whose figures the suite repeats."""


def ascending(text: str) -> list[int]:
    """Parse ``1,2,4``; an empty text gives an empty list. Raises UsageError."""
    try:
        ranks = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        ranks = [0]
    if any(p < 1 for p in ranks) or ranks != sorted(set(ranks)):
        raise UsageError(f"--ranks {text}: must be ascending whole numbers from 1, such as 1,2,4,8")
    if ranks and ranks[-1] > MAX_RANKS:
        raise UsageError(f"--ranks {registry.shortened(ranks[-1])}: must be at most {MAX_RANKS}")
    return ranks


def predict(
    what: Path,
    network: str,
    ranks: Sequence[int] = (),
    *,
    globs: Sequence[str] = (),
    ranks_per_host: int | None = None,
    meshes: bool = False,
    show: Callable[[str], object] = lambda _: None,
    jitter: float | None = None,
) -> Prediction:
    """Predict a suite or a run on a network: a preset's name, a network file, or a run to fit a network to.

    ``ranks`` default to each case's own. With ``meshes``, only the parallelism of trainings is predicted. ``show``
    gets a line before each simulation of steps. ``jitter``: see :func:`hpcdl.prediction.steps.predicted_steps`.
    Raises UsageError, one line.
    """
    wanted, run, papers = _records(what, globs)
    priced, explained, source, known = _network(network)
    cluster, certainty = priced.network, priced.certainty
    if ranks_per_host is not None:
        if cluster.is_one_host:
            raise UsageError(f"--ranks-per-host: {cluster.name} describes one host, without links between hosts")
        try:
            cluster = cluster.on(ranks_per_host)
        except ValueError as error:
            raise UsageError(f"--ranks-per-host: {error}") from None
        priced = replace(priced, network=cluster)
    times = partial(_times, [Recorded(measured) for measured in (run, source) if measured])
    if meshes:
        compared, reasons = parallelism(wanted, times, priced, ranks)
        if not compared:
            reason = f": {reasons[0]}" if reasons else ""
            raise UsageError(f"{what}: it has no training whose parallelism can be predicted{reason}")
        return Prediction(cluster, explained, certainty, [], [], compared, list(dict.fromkeys(reasons)))
    rows, left_out = _operations(wanted, priced, ranks)
    steps, others = predicted_steps(wanted, times, priced, ranks, known, show, jitter)
    left_out += [*others, *(line for each in (run, source) if each for line in each.copies)]
    if not rows and not steps:
        reason = f": {left_out[0]}" if left_out else ""
        raise UsageError(f"{what}: none of its cases can be predicted{reason}")
    return Prediction(cluster, explained, certainty, rows, steps, [], list(dict.fromkeys(left_out)), papers)


def _program(record: Record) -> tuple[Any, ...]:
    """Return what identifies a predicted program, apart from the number of ranks."""
    operation = (record.kind, record.collective, record.concurrent, record.communicators, record.pattern,
                 record.message_bytes, record.dtype)  # fmt: skip
    return (*operation, record.aggregation, record.compression)


def _operations(
    wanted: Sequence[Record], priced: PricedNetwork, ranks: Sequence[int]
) -> tuple[list[Record], list[str]]:
    """Return predictions of collectives and exchanges, and the cases without one, with reasons."""
    cluster = priced.network
    programs: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in wanted:
        if not record.is_training:
            programs.setdefault(_program(record), {})[record.ranks] = record
    rows: list[Record] = []
    left_out: list[str] = []
    for known in programs.values():
        first = next(iter(known.values()))
        for p in ranks if ranks and first.kind == "collective" else sorted(known):
            like = known.get(p, first)
            began = perf_counter()
            try:
                check_hosts(like, cluster, p)
                program, shares = program_of(like, p), scheme_traits(like).shares_ports
                hosts = with_shared_ports(cluster, p, shares=shares)
                seconds, simulated_ranks = simulate(program, p, hosts) if program is not None else (0.0, p)
            except ValueError as error:
                left_out.append(f"{like.aggregation} on {p} ranks: {error}")
                continue
            if program is None:
                left_out.append(f"{like.case}: no prediction for such a case")
                break
            row = _row(like, known.get(p), p, priced, seconds)
            row.simulated_ranks, row.simulation_seconds = simulated_ranks, perf_counter() - began
            half, row.undetermined = uncertainty(program, p, cluster, priced.certainty, str(like.aggregation))
            row.predicted_low_seconds, row.predicted_high_seconds = bounds(seconds, half)
            rows.append(row)
    return rows, left_out


def _times(runs: Sequence[Recorded], record: Record, spec: StepSpec) -> ComputeTimes:
    """Return the compute times of a training case: from its settings, or measured by one of ``runs``."""
    if spec.times_given:
        times: ComputeTimes = record.spec.compute_times
        return times
    for measured in runs:
        try:
            return measured(record.row, spec.ranks).of_network(spec.layers, spec.shape)
        except ValueError:
            continue
    known = shipped(CORE, str(spec.model), spec.shape, spec.images)
    if known is not None and record.backend != "cupy":
        return known.of_network(spec.layers, spec.shape)
    raise ValueError("its compute times are unknown: predict a run that recorded its events")


def _row(like: Record, measured: Record | None, ranks: int, priced: PricedNetwork, seconds: float) -> Record:
    was_measured = measured is not None and not measured.network and measured.correct is not False
    return replace(
        like.described,
        ranks=ranks,
        time_p50_seconds=measured.time_p50_seconds if measured and was_measured else None,
        predicted_seconds=seconds,
        disturbed=measured.disturbed if measured and was_measured else None,
        network=priced.network.name,
        times_the_measured_ranks=priced.distance(ranks),
        library_decides=scheme_traits(like).native,
    )


def _records(what: Path, globs: Sequence[str]) -> tuple[list[Record], Run | None, list[str]]:
    """Return the selected cases of a suite, or of a run, the run, and the papers that the suite names."""
    if what.suffix == ".toml" or str(what) in suites():
        loaded = suite.load(what, globs=globs)
        return [Record.of(case.fields()) for case in loaded.cases], None, suite.papers(loaded.text)
    run, known = _read(what)
    chosen = suite.matching([str(record.case) for record in known], globs)
    return [known[place] for place in chosen], run, suite.papers(run.suite)


def _network(name: str) -> tuple[PricedNetwork, Fitted | None, Run | None, list[Record]]:
    """Return the network, and the fit, its run and that run's records if it is made now."""
    if name in NETWORKS:
        return PricedNetwork(NETWORKS[name]), None, None, []
    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"--network: unknown {name!r}, not a file or run either{registry.nearest(name, NETWORKS)}"
        )
    if path.suffix == ".toml":
        try:
            return load_network(path), None, None, []
        except NetworkFileError as error:
            raise UsageError(f"--network {error}") from None
    run, known = _read(path)
    kept, notes = with_own_cores(known)
    try:
        network_fit = fitted(run, measured_programs(kept), notes)
    except (CannotFitError, ValueError) as error:
        raise UsageError(f"--network {path}: {' '.join([str(error), *notes])}") from None
    return network_fit.priced, network_fit, run, known


def _read(path: Path) -> tuple[Run, list[Record]]:
    try:
        run = read_pooled([path])
    except (TraceError, ValueError) as error:
        raise UsageError(str(error)) from None
    try:
        return run, marked(run, records(launches(run)))
    except AmbiguousCaseError as error:
        raise UsageError(f"{run.path}: {error}") from None
