"""Predict the cases of a suite or a run on a network by simulating their programs.

The network is a preset, in a file, or fitted to a run's measurements; see :mod:`hpcdl.prediction.fitting`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from hpcdl import registry, suite
from hpcdl.analysis.run.disturbance import marked
from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import AmbiguousCaseError, read_pooled
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import records
from hpcdl.cases.keys.compute_times import CORE, ComputeTimes, Recorded, devices_with_times, shipped
from hpcdl.cases.keys.key import MAX_RANKS
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.keys.suite_tables import suites
from hpcdl.exit_codes import UsageError, refused
from hpcdl.fabric.network import MACHINES, NETWORKS, Network
from hpcdl.prediction.fitting import CannotFitError, fitted, uncertainty, with_own_cores
from hpcdl.prediction.network_file import NetworkEstimate, format_network, load_network, network_of_tables
from hpcdl.prediction.parallelism import Parallelism, parallelism
from hpcdl.prediction.programs import (
    MeasuredProgram,
    cheapest,
    measured_programs,
    network_of,
    predicted_record,
    program_of,
)
from hpcdl.prediction.steps import predicted_steps
from hpcdl.trace.files import JsonObject, parse_toml
from hpcdl.trace.log import Facts
from hpcdl.trace.recorder import TraceError, analysed
from hpcdl.trace.run import Run

MAX_REPORT_MESSAGES: Final = 60_000
"""Most messages that a report simulates for a fit; they take about half a second."""


@dataclass(frozen=True)
class Prediction:
    """Predicted times: records with ``predicted_seconds``, and with measured times where available."""

    estimate: NetworkEstimate
    rows: list[Record] = field(default_factory=list)
    """Predictions of collectives and exchanges."""
    steps: list[Record] = field(default_factory=list)
    """Predictions of training steps."""
    meshes: list[Parallelism] = field(default_factory=list)
    """Parallelism of the trainings, if asked for."""
    left_out: list[str] = field(default_factory=list)
    """Cases without a prediction, with reasons."""
    papers: list[str] = field(default_factory=list)
    """Papers whose figures the suite repeats."""
    records: list[Record] = field(default_factory=list)
    """All records of a run, of which some are predicted on a network that is fitted to it."""
    is_same_network: bool = True
    """True if measured times are of the network on which they are predicted: only then predictions have errors."""
    disturbed: Mapping[str, str] = field(default_factory=dict)
    """Disturbances by case, of the cases whose compute times may be used."""


class Source(NamedTuple):
    """Cases of a suite, or of a run that may have measured compute times."""

    records: Sequence[Record] = ()
    run: Run | None = None
    papers: Sequence[str] = ()
    every: Sequence[Record] = ()
    """All records of the run, also those that are not selected."""


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
    facts: Facts = (),
) -> Prediction:
    """Predict a suite or a run on a network: a preset's name, a network file, or a run to fit a network to.

    ``ranks`` default to each case's own; with ``ranks`` steps are predicted on one rank too. With ``meshes``, only
    the parallelism of trainings is predicted. ``show`` gets a line before each simulation of steps.
    ``jitter``: see :func:`hpcdl.prediction.steps.predicted_steps`.
    Raises UsageError, one line.
    """
    cases = _source(what, globs, facts)
    estimate, fitted_to = network_named(network, facts)
    if ranks_per_host is not None:
        if estimate.network.is_one_host:
            name = estimate.network.name
            raise UsageError(f"--ranks-per-host: {name} describes one host, without links between hosts")
        with refused("--ranks-per-host: "):
            estimate = replace(estimate, network=estimate.network.on(ranks_per_host))
    runs = [source.run for source in (cases, fitted_to) if source.run]
    times = partial(_times, list(map(Recorded, runs)))
    every = (*fitted_to.every, *cases.every)
    disturbed = {str(record.case): record.disturbed for record in every if record.disturbed}
    here = estimate.describes(cases.run)
    if meshes:
        compared, left_out = parallelism(cases.records, times, estimate, ranks)
        prediction = Prediction(estimate, meshes=compared, is_same_network=here)
        wanted = "it has no training whose parallelism can be predicted"
    else:
        rows, left_out = _operations(cases.records, estimate, ranks)
        base = {1} - {*ranks} if ranks else set()  # efficiencies are against one rank
        steps, others = predicted_steps(
            cases.records, times, estimate, [*base, *ranks], fitted_to.records, disturbed, show, jitter
        )
        others = [line for line in others if not (base and " on 1 ranks: " in line)]
        left_out += [*others, *(line for run in runs for line in run.copies)]
        prediction = Prediction(estimate, rows, steps, papers=list(cases.papers), is_same_network=here)
        wanted = "none of its cases can be predicted"
    prediction = replace(prediction, left_out=[*dict.fromkeys(left_out)], disturbed=disturbed)
    if not (prediction.rows or prediction.steps or prediction.meshes):
        raise UsageError(": ".join([f"{what}", wanted, *left_out[:1]]))
    if jitter is not None and not prediction.steps:
        raise UsageError("--jitter: changes training steps, and none is predicted")
    return prediction


OF_PROGRAM: Final = (
    *("kind", "collective", "pattern", "message_bytes", "dtype", "aggregation"),
    *("compression", "counts"),
)
"""Fields of a record that identify a predicted program, apart from the number of ranks."""


def _operations(
    records: Sequence[Record], estimate: NetworkEstimate, ranks: Sequence[int]
) -> tuple[list[Record], list[str]]:
    """Return predictions of collectives and exchanges, and the cases without one, with reasons."""
    programs: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in records:
        if not record.is_training:
            key = tuple(getattr(record, name) for name in OF_PROGRAM)
            programs.setdefault(key, {})[record.ranks] = record
    rows, left_out = list[Record](), list[str]()
    for cases in programs.values():
        first = next(iter(cases.values()))
        given = ranks if first.kind == "collective" else []
        if ranks and not given:
            left_out.append(f"{first.case} on other ranks: --ranks is for collectives and training steps")
        for p in given or sorted(cases):
            try:
                row = _predicted(cases.get(p), first, p, estimate)
            except ValueError as error:
                left_out.append(f"{first.aggregation} on {p} ranks: {error}")
                continue
            if row is None:
                left_out.append(f"{cases.get(p, first).case}: no prediction for such a case")
                break
            rows.append(row)
    return rows, left_out


def _predicted(record: Record | None, first: Record, ranks: int, estimate: NetworkEstimate) -> Record | None:
    """Return the prediction of a program, of which ``record`` is a case on as many ranks; None for other cases."""
    like, began = record or first, perf_counter()
    network, program = network_of(like, estimate.network, ranks), program_of(like, ranks)
    if program is None:
        return None
    simulation, took = program.simulate(network), perf_counter() - began
    half, undetermined = uncertainty(program, estimate, str(like.aggregation))
    measured = record is not None and not record.network and record.correct is not False
    return predicted_record(
        like,
        ranks,
        estimate,
        None,
        simulation.seconds,
        (half,),
        undetermined=undetermined,
        time_p50_seconds=like.time_p50_seconds if measured else None,
        disturbed=like.disturbed if measured else None,
        simulated_ranks=simulation.simulated_ranks,
        simulation_seconds=took,
    )


def _times(runs: Sequence[Recorded], record: Record, spec: StepSpec) -> ComputeTimes:
    """Return the compute times of a training case: from its settings, or measured by one of ``runs``."""
    if spec.times_given:
        times: ComputeTimes = record.spec.compute_times
        return times
    for measured in runs:
        with suppress(ValueError):
            return measured(record.row, spec.ranks).of_network(spec.layers, spec.shape)
    core = shipped(CORE, str(spec.model), spec.shape, spec.images)
    if core is not None and record.backend != "cupy":
        return core.of_network(spec.layers, spec.shape)
    raise ValueError("its compute times are unknown: predict a run that recorded its events")


def _source(path: Path, globs: Sequence[str], facts: Facts) -> Source:
    """Return the selected cases of a suite or of a run. Raises UsageError."""
    if path.suffix == ".toml" or str(path) in suites():
        loaded = suite.load(path, globs=globs)
        return Source([Record.of(case.fields()) for case in loaded.cases], None, suite.papers(loaded.text))
    if not path.exists() and str(path) in registry.names("models"):
        raise UsageError(_how_to_predict(str(path)))
    run, measured = _read(path, facts)
    chosen = suite.matching([str(record.case) for record in measured], globs)
    return Source([measured[place] for place in chosen], run, suite.papers(run.suite), measured)


def _how_to_predict(model: str) -> str:
    """Return a line on how to predict a network: by a replay, with times of the package if it has any."""
    devices = devices_with_times(model)
    known = "the package has times of it on " + ", ".join(devices)
    known = known if devices else "the package has no times of it, and hpcdl help models records them"
    rate = f'device = "{devices[-1]}"' if devices else "flops = 1e13"
    keys = f'kind = "replay", model = "{model}", {rate}, batch_per_rank = 32, ranks = 8'
    return (
        f"{model} is a network, and predict needs a suite or a run: write a suite with a case of {keys} ({known})"
    )


def _read(path: Path, facts: Facts) -> tuple[Run, list[Record]]:
    """Return a run and its records. Raises UsageError."""
    try:
        run = read_pooled([path], facts)
    except (TraceError, ValueError) as error:
        raise UsageError(str(error)) from None
    try:
        return run, marked(run, records(launches(run)))
    except AmbiguousCaseError as error:
        raise UsageError(f"{run.path}: {error}") from None


def network_named(name: str, facts: Facts = ()) -> tuple[NetworkEstimate, Source]:
    """Return the network, and the run to which it is fitted now. Raises UsageError."""
    if name in NETWORKS:
        shipped = MACHINES / f"{name}.toml"
        return load_network(shipped) if shipped.exists() else NetworkEstimate(NETWORKS[name]), Source()
    path, other = Path(name), registry.nearest(name, NETWORKS)
    if not path.exists():
        raise UsageError(f"--network: unknown {name!r}, not a file or run either{other}")
    if path.suffix == ".toml":
        with refused("--network "):
            return load_network(path), Source()
    run, measured = _read(path, facts)
    if any(record.log and not record.nodes for record in measured):
        raise UsageError(f"--network {path}: the log does not state the nodes of its ranks: --log nodes=N")
    kept, notes = with_own_cores(measured)
    try:
        return fitted(run, _programs(kept), notes), Source(measured, run, (), measured)
    except (CannotFitError, ValueError) as error:
        hint = "; which algorithm the library chose is not known: --log algorithm=ring" if measured[0].log else ""
        raise UsageError(f"--network {path}: {' '.join([str(error), *notes])}{hint}") from None


def expect(network: Network, measured: Sequence[Record]) -> None:
    """Set the times of measured operations that are expected on a network, with as many ranks on a host."""
    for program in cheapest(_programs(measured), MAX_REPORT_MESSAGES):
        hosts = program.record.nodes
        placed = network.on(-(-program.ranks // hosts)) if hosts and not network.is_one_host else network
        program.record.expected_seconds = program.predicted(placed)


def _programs(records: Sequence[Record]) -> list[MeasuredProgram]:
    programs = list[MeasuredProgram]()
    for record in records:
        if ":" not in str(record.aggregation):  # a user's own scheme may not be simulated here
            with suppress(ValueError):  # a scheme of another version
                programs += measured_programs([record])
    return programs


def predict_run(run: Run, measured: Sequence[Record]) -> Prediction | None:
    """Fit a network to the ``measured`` records of a run, within seconds, and predict these and replays.

    Returns None for fewer than three measured times per cost parameter.
    """
    predicted = [record.but() for record in measured]
    kept, notes = with_own_cores(predicted)
    programs = _programs(kept)
    chosen = cheapest(programs, MAX_REPORT_MESSAGES)
    try:
        # as many costs as times would explain any times, and the page would show errors of 0
        estimate = fitted(run, chosen, notes, least=3)
    except CannotFitError:
        return None
    for program in chosen:
        program.record.predicted_seconds = program.predicted(estimate.network)
    replays = [record for record in predicted if record.kind == "replay" and not (record.network or record.error)]
    given = lambda record, _spec: record.spec.compute_times
    steps, _ = predicted_steps(replays, given, NetworkEstimate(estimate.network))
    by_case = {step.case: step.predicted_seconds for step in steps}
    for record in replays:
        record.predicted_seconds = by_case.get(record.case)
    more = len(programs) - len(chosen)
    times = f"{more} measured time{'' if more == 1 else 's'} more would take long to simulate"
    left_out = [f"{times}; hpcdl predict does it."] if more else []
    return Prediction(estimate, [program.record for program in chosen], left_out=left_out, records=predicted)


def document(run: Run, prediction: Prediction) -> JsonObject:
    """Return the predictions of a run, and the network that they rest on, as the run keeps them."""
    return {
        "made_of": _digest(run),
        "network": format_network(prediction.estimate),
        "hosts": prediction.estimate.network.hosts,
        "seconds": [record.predicted_seconds for record in prediction.records],
        "left_out": prediction.left_out,
    }


def kept(run: Run, measured: Sequence[Record]) -> Prediction | None:
    """Return the predictions that a run keeps; None if it keeps none, or those of other cases."""
    document = run.predictions
    if not document or document.get("made_of") != _digest(run):
        return None
    with analysed(run.path, ValueError):
        estimate = network_of_tables(parse_toml(document["network"], "predictions"), run.path)
        estimate = replace(estimate, network=replace(estimate.network, hosts=tuple(document["hosts"])))
        times = zip(measured, document["seconds"], strict=True)
        predicted = [record.but(predicted_seconds=seconds) for record, seconds in times]
        rows = [record for record in predicted if record.predicted_seconds and record.kind != "replay"]
        return Prediction(estimate, rows, left_out=document["left_out"], records=predicted)


def _digest(run: Run) -> str:
    """Return a digest of the cases of a run, launches together."""
    return hashlib.sha256(" ".join(run.identities).encode()).hexdigest()[:16]
