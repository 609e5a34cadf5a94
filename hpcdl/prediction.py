"""What the cases of a suite or a run take on a network, by simulating the programs that they run.

The network is a preset, one in a file, or one fitted to what a run measured; see :mod:`hpcdl.analysis.fitting`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry, suite
from hpcdl.analysis.cells import cells, hosts, of_a_library, program_of
from hpcdl.analysis.fields import CONTRACT
from hpcdl.analysis.fitting import CannotFitError, Fit, fit, summary
from hpcdl.analysis.network_file import NetworkFileError, loaded
from hpcdl.analysis.scaling import AmbiguousCaseError, records
from hpcdl.fabric.network import NETWORKS, Network
from hpcdl.fabric.simulated import simulated
from hpcdl.suite import UsageError
from hpcdl.trace.record import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.trace.run import Run

FAR: Final = 4
"""Times the largest measured number of ranks beyond which a prediction carries a warning."""

PROGRAM: Final = ("kind", "collective", "pattern", "aggregation", "compression", "dtype", "message_bytes")
"""What tells one predicted program from another; the number of ranks apart."""


@dataclass(frozen=True)
class Fitted:
    """A network that explains a run, and how well."""

    found: Fit
    run: str
    date: str
    library: str

    @property
    def network(self) -> Network:
        """Named after the run."""
        source = f"fitted to {len(self.found.cells)} times of {', '.join(filter(None, (self.run, self.date)))}"
        return replace(self.found.network, name=f"fitted to {self.run}", source=source)

    @property
    def most_ranks(self) -> int:
        """The largest number of ranks it has seen."""
        return max(cell.ranks for cell in self.found.cells)

    @cached_property
    def errors(self) -> dict[str, dict[str, Any]]:
        """Median and worst relative error of the times themselves, and of times predicted from the others'."""
        return {
            "fitted": summary(self.found.errors),
            "scheme_and_ranks_left_out": summary(self.found.left_out(lambda cell: (cell.scheme, cell.ranks))),
            "ranks_left_out": summary(self.found.left_out(lambda cell: cell.ranks)),
        }

    @property
    def origin(self) -> dict[str, Any]:
        """What a file of this network says about it."""
        each = {
            f"{what}_{which}": self.errors[what][which] for what in self.errors for which in ("median", "worst")
        }
        return {
            "run": self.run,
            "date": self.date,
            "library": self.library,
            "times": len(self.found.cells),
            "most_ranks": self.most_ranks,
            **{f"error_{name}": value for name, value in each.items()},
        }


@dataclass(frozen=True)
class Prediction:
    """Rows are records with ``predicted_seconds``; a measured time stands beside it where there is one."""

    network: Network
    fitted: Fitted | None
    rows: list[Record]
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


def fitted(run: Run) -> Fitted:
    """Fit a network to a run. Raises CannotFitError."""
    mpi = run.environment.get("mpi")
    library = f"{mpi.get('library', '')} {mpi.get('version', '')}".strip() if isinstance(mpi, dict) else ""
    found = fit(cells(records(run)), hosts(run))
    return Fitted(found, run.path.name, str(run.environment.get("date") or ""), library)


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
    subject = _records(what)
    cluster, explained, most = _network(network)
    if ranks_per_host is not None:
        if cluster.is_one_host:
            raise UsageError(
                f"--ranks-per-host: {cluster.name} knows one host and nothing of what is between hosts"
            )
        try:
            cluster = cluster.on(ranks_per_host)
        except ValueError as error:
            raise UsageError(f"--ranks-per-host: {error}") from None
    programs: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in subject:
        if glob is None or fnmatch(str(record.get("case")), glob):
            programs.setdefault(tuple(map(record.get, PROGRAM)), {})[record["ranks"]] = record
    rows: list[Record] = []
    left_out: list[str] = []
    for known in programs.values():
        first = next(iter(known.values()))
        for p in ranks if ranks and first["kind"] == "collective" else sorted(known):
            like = known.get(p, first)
            try:
                program = program_of(like, p)
            except ValueError as error:
                left_out.append(f"{like['aggregation']} on {p} ranks: {error}")
                continue
            if program is None:
                left_out.append(f"{like.get('case')}: no prediction for such a case")
                break
            began = perf_counter()
            world = simulated(p, cluster)
            try:
                world.run(program)
            except ValueError as error:
                left_out.append(f"{like['aggregation']} on {p} ranks: {error}")
                continue
            rows.append(_row(like, known.get(p), p, cluster, most, world.now, perf_counter() - began))
    if not rows:
        reason = f": {left_out[0]}" if left_out else ""
        raise UsageError(f"{what}: no case of it can be predicted{reason}")
    return Prediction(cluster, explained, rows, list(dict.fromkeys(left_out)))


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


def _records(what: Path) -> list[Record]:
    """The cases of a suite file, or the records of a run."""
    if what.suffix == ".toml":
        return [dict(case.fields()) for case in suite.load(what).cases]
    return _reduced(_read(what))


def _network(name: str) -> tuple[Network, Fitted | None, int | None]:
    """The network, the fit if it is made now, and the most ranks that it was fitted to."""
    if name in NETWORKS:
        return NETWORKS[name], None, None
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
        return cluster, None, most
    run = _read(path)
    _reduced(run)
    try:
        found = fitted(run)
    except (CannotFitError, ValueError) as error:
        raise UsageError(f"--network {path}: {error}") from None
    return found.network, found, found.most_ranks


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
