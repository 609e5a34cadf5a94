"""What the cases of a suite or a run take on a network, by simulating the programs that they run.

The network is a preset, one in a file, or one fitted to what a run measured; see :mod:`hpcdl.analysis.fitting`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry, suite
from hpcdl.analysis.cells import cells, of_a_library, program_of
from hpcdl.analysis.compute_times import ComputeTimes, Recorded
from hpcdl.analysis.fields import CONTRACT
from hpcdl.analysis.fitted import Fitted, fitted
from hpcdl.analysis.fitting import CannotFitError
from hpcdl.analysis.network_file import NetworkFileError, loaded
from hpcdl.analysis.scaling import AmbiguousCaseError, records
from hpcdl.assembly import compute_times
from hpcdl.fabric.network import NETWORKS, Network
from hpcdl.fabric.simulated import simulated
from hpcdl.predicted_steps import STEPPING, predicted_steps
from hpcdl.simulation import TIMES
from hpcdl.suite import UsageError
from hpcdl.trace.record import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.trace.run import Run

FAR: Final = 4
"""Times the largest measured number of ranks beyond which a prediction carries a warning."""

PROGRAM: Final = ("kind", "collective", "pattern", "aggregation", "compression", "dtype", "message_bytes")
"""What tells one predicted program from another; the number of ranks apart."""


@dataclass(frozen=True)
class Prediction:
    """Rows are records with ``predicted_seconds``; a measured time stands beside it where there is one."""

    network: Network
    fitted: Fitted | None
    rows: list[Record]
    """Collectives and exchanges."""
    steps: list[Record]
    """Training steps."""
    left_out: list[str] = field(default_factory=list)
    """What could not be predicted, and why."""


def ascending(text: str) -> list[int]:
    """Read ``1,2,4``; nothing for an empty text. Raises UsageError."""
    try:
        ranks = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        ranks = [0]
    if any(p < 1 for p in ranks) or ranks != sorted(set(ranks)):
        raise UsageError(f"--ranks {text}: must be ascending whole numbers from 1, such as 1,2,4,8")
    return ranks


def predict(
    what: Path,
    network: str,
    ranks: Sequence[int] = (),
    *,
    glob: str | None = None,
    ranks_per_host: int | None = None,
) -> Prediction:
    """Predict a suite or a run on a network: a preset's name, a network file, or a run to fit one to.

    ``ranks``: the case's own unless given. Raises UsageError, one line.
    """
    subject, run = _records(what)
    cluster, explained, most, source = _network(network)
    if ranks_per_host is not None:
        if cluster.is_one_host:
            raise UsageError(
                f"--ranks-per-host: {cluster.name} knows one host and nothing of what is between hosts"
            )
        try:
            cluster = cluster.on(ranks_per_host)
        except ValueError as error:
            raise UsageError(f"--ranks-per-host: {error}") from None
    wanted = [record for record in subject if glob is None or fnmatch(str(record.get("case")), glob)]
    rows, left_out = _operations(wanted, cluster, ranks, most)
    steps, others = predicted_steps(
        wanted, partial(_times, [Recorded(one) for one in (run, source) if one]), cluster, ranks, most
    )
    left_out += others
    if not rows and not steps:
        reason = f": {left_out[0]}" if left_out else ""
        raise UsageError(f"{what}: no case of it can be predicted{reason}")
    return Prediction(cluster, explained, rows, steps, list(dict.fromkeys(left_out)))


def _operations(
    wanted: Sequence[Record], cluster: Network, ranks: Sequence[int], most: int | None
) -> tuple[list[Record], list[str]]:
    """Rows for collectives and exchanges; what could not be predicted, and why."""
    programs: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in wanted:
        if record["kind"] not in STEPPING:
            programs.setdefault(tuple(map(record.get, PROGRAM)), {})[record["ranks"]] = record
    rows: list[Record] = []
    left_out: list[str] = []
    for known in programs.values():
        first = next(iter(known.values()))
        for p in ranks if ranks and first["kind"] == "collective" else sorted(known):
            like = known.get(p, first)
            began = perf_counter()
            world = simulated(p, cluster)
            try:
                program = program_of(like, p)
                if program is not None:
                    world.run(program)
            except ValueError as error:
                left_out.append(f"{like['aggregation']} on {p} ranks: {error}")
                continue
            if program is None:
                left_out.append(f"{like.get('case')}: no prediction for such a case")
                break
            rows.append(_row(like, known.get(p), p, cluster, most, world.now, perf_counter() - began))
    return rows, left_out


def _times(
    runs: Sequence[Recorded], record: Record, ranks: int, network: Sequence[Layer], shape: Shape
) -> ComputeTimes:
    """How long the work of a training case takes: what the case says, else what one of ``runs`` measured."""
    said = {name: record.get(name) for name in (*TIMES, "time_scale", "scale_to_batch", "batch_per_rank", "model")}
    if any(said[name] for name in TIMES):
        return compute_times(said, network, shape)
    for measured in runs:
        try:
            return measured(record, ranks)
        except ValueError:
            continue
    raise ValueError("nothing says how long its computing takes: predict a run that recorded events of it")


def _row(
    like: Record,
    measured: Record | None,
    ranks: int,
    network: Network,
    most: int | None,
    seconds: float,
    took: float,
) -> Record:
    was_measured = measured is not None and not measured.get("network") and measured.get("correct") is not False
    return {
        **{name: like.get(name) for name in CONTRACT if name in PROGRAM or name in {"suite", "case"}},
        "ranks": ranks,
        "time_p50_seconds": measured.get("time_p50_seconds") if measured and was_measured else None,
        "predicted_seconds": seconds,
        "network": network.name,
        "times_the_measured_ranks": ranks / most if most else None,
        "library_decides": of_a_library(str(like["aggregation"])),
        "simulation_seconds": took,
    }


def _records(what: Path) -> tuple[list[Record], Run | None]:
    """The cases of a suite file, or the records of a run and the run."""
    if what.suffix == ".toml":
        return [dict(case.fields()) for case in suite.load(what).cases], None
    run = _read(what)
    return _reduced(run), run


def _network(name: str) -> tuple[Network, Fitted | None, int | None, Run | None]:
    """The network, the fit if it is made now, the most ranks that it was fitted to, and the run it is from."""
    if name in NETWORKS:
        return NETWORKS[name], None, None, None
    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"--network: unknown {name!r}, which is no file or run either{registry.nearest(name, NETWORKS)}"
        )
    if path.suffix == ".toml":
        try:
            cluster, most = loaded(path)
        except NetworkFileError as error:
            raise UsageError(f"--network {error}") from None
        return cluster, None, most, None
    run = _read(path)
    try:
        found = fitted(run, cells(_reduced(run)))
    except (CannotFitError, ValueError) as error:
        raise UsageError(f"--network {path}: {error}") from None
    return found.network, found, found.most_ranks, run


def _read(path: Path) -> Run:
    from hpcdl.trace.schema import read

    try:
        return read(path)
    except TraceError as error:
        raise UsageError(str(error)) from None


def _reduced(run: Run) -> list[Record]:
    try:
        return records(run)
    except AmbiguousCaseError as error:
        raise UsageError(f"{run.path}: {error}") from None
