"""Networks in TOML files: cost parameters, ranks per host, topology, and their origin."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics.estimates import student_quantile
from hpcdl.cases.keys.key import Choice, about, with_topology
from hpcdl.fabric.network import EVERY_RANK, SEGMENTS, SHARED_MEMORY, Link, Network, Site
from hpcdl.launch.testbed import usual_rate
from hpcdl.registry import MAX_INTEGER, shortened
from hpcdl.trace.files import JsonObject, read_toml
from hpcdl.trace.run import Run

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

COSTS: Final = (
    *("alpha", "beta", "gamma", "inside alpha", "inside beta"),
    *("overhead", "distance alpha", "distance beta"),
    *(f"extra from {size} B" for size in SEGMENTS),
)
"""Cost parameters: seconds per message, per byte, per byte reduced; per message and byte within a host; and those
of a detailed link, see :class:`hpcdl.fabric.network.Link`."""
PLAIN: Final = 5
"""Number of parameters without a detailed link; fits to runs have no others."""


@dataclass(frozen=True)
class Certainty:
    """Fitted cost parameters with their uncertainty."""

    costs: Vector
    """Cost parameters in the order of :data:`COSTS`, all or the first ones."""
    information: Matrix
    """(costs, costs): inverse covariance (1/s^2); 0 for a parameter that no measured time depends on."""
    errors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of relative errors, by kind of prediction: median, worst, share within the 95 % intervals, and number."""
    times: Sequence[tuple[str, float, float]] = ()
    """Scheme, predicted time (s), and logarithm of predicted / measured time, of each fitted time."""
    notes: Sequence[str] = ()
    """Measurements that the fit omits."""
    growth: Sequence[tuple[str, float, float]] = ()
    """Scheme, time (s), and logarithm of predicted / measured time / logarithm of the ratio of the ranks, of each
    time on the most measured ranks when it is predicted from fewer ranks."""

    @property
    def determined(self) -> list[str]:
        """Return the parameters that some measured time depends on."""
        return [COSTS[cost] for cost in np.flatnonzero(np.diag(self.information))]

    @property
    def undetermined(self) -> list[str]:
        """Return the parameters that may be 0, or of which only a sum with others is known."""
        return [name for name, unit in zip(COSTS, np.eye(len(self.costs)), strict=False)
                if name in self.determined and self.margin(unit) >= 1]  # fmt: skip

    def error_of(self, scheme: str, seconds: float) -> float:
        """Return half the 95 % interval of the logarithm of a scheme's time, for exact costs; infinity if unknown.

        It is Student's, of the fitted times' errors, which weigh the more the nearer their times are to
        ``seconds``, and 0.3 as much for another scheme; the degrees of freedom are the effective number of errors
        (Kish, Survey Sampling, 1965, 11.7).
        """
        if not (self.times and seconds > 0):
            return math.inf if seconds > 0 else 0.0
        weights, errors = _weighted(self.times, scheme, seconds)
        count = 1 / float(weights @ weights)
        deviation = math.sqrt(float(weights @ np.square(errors)) * (1 + 1 / count))
        return student_quantile(count, 0.95) * deviation

    def growth_of(self, scheme: str, seconds: float) -> float:
        """Return the absolute weighted mean of :attr:`growth` for a scheme's time; 0 if it is unknown."""
        if not (self.growth and seconds > 0):
            return 0.0
        weights, growth = _weighted(self.growth, scheme, seconds)
        return abs(float(weights @ growth))

    def margin(self, coefficients: Vector) -> float:
        """Return half the 95 % interval of ``coefficients @ costs`` relative to it; infinity if unknown."""
        predicted = float(coefficients @ self.costs)
        size = np.sqrt(np.diag(self.information))
        known = size > 0
        if coefficients[~known].any():
            return math.inf
        scaled, size = coefficients[known] / size[known], size[known]
        values, directions = np.linalg.eigh(self.information[np.ix_(known, known)] / np.outer(size, size))
        # smaller eigenvalues are rounding errors, for a diagonal of 1
        deviation = math.sqrt(float(((directions.T @ scaled) ** 2 / values.clip(1e-10)).sum()))
        return 2 * deviation / predicted if predicted > 0 else math.inf if deviation else 0.0


def _weighted(rows: Sequence[tuple[str, float, float]], scheme: str, seconds: float) -> tuple[Vector, Vector]:
    """Return the weights of the rows' errors for a scheme's time, with sum 1, and the errors."""
    names, times, errors = zip(*rows, strict=True)
    distances = np.log(np.array(times) / seconds) / math.log(4)  # errors depend on the length
    weights = np.exp(-(distances.clip(-5, 5) ** 2) / 2) * np.where(np.array(names) == scheme, 1, 0.3)
    return weights / weights.sum(), np.array(errors)


@dataclass(frozen=True)
class NetworkEstimate:
    """A network, and how well its cost parameters are known."""

    network: Network
    most_ranks: int | None = None
    """Largest measured number of ranks; None if the network was not fitted."""
    certainty: Certainty | None = None
    """Uncertainty of fitted parameters."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Description of the fit: run, date, environment, library, number of times, most ranks."""
    topology: Mapping[str, Any] = field(default_factory=dict)
    """Table of the topology in the file that was read."""

    @property
    def title(self) -> str:
        """Return the name of the network in a sentence."""
        run = self.origin.get("run")
        return f"the network of {run}" if run else self.network.name

    def describes(self, run: Run | None) -> bool:
        """Return True if the network was fitted to this run, or to another one on the same links."""
        if run is None or not self.origin:
            return False
        here = origin_of(run)
        is_same = all(self.origin.get(key) == here[key] for key in ("run", "date"))
        return is_same or (bool(here["environment"]) and self.origin.get("environment") == here["environment"])

    @property
    def errors(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the errors of a fit, by kind of prediction; see :class:`Certainty`."""
        return self.certainty.errors if self.certainty else {}

    def distance(self, ranks: int, otherwise: int | None = None) -> float | None:
        """Return ``ranks`` by the most that were measured, or by ``otherwise``; None if none were."""
        farthest = self.most_ranks or otherwise
        return ranks / farthest if farthest else None


def origin_of(run: Run) -> dict[str, str]:
    """Return what identifies a run to which a network is fitted: name, date, and environment with its links."""
    key, testbed = run.environment.get("key"), run.environment.get("emulated")
    environment = f"{key}, {usual_rate(testbed)}" if key and testbed else str(key or "")
    return {"run": run.path.name, "date": str(run.environment.get("date") or ""), "environment": environment}


def bounds(value: float, *margins: float) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a value with independent uncertainties, the margins of its logarithm.

    None if they are 0, which means that no error is known, or so large that the value is unknown.
    """
    half = math.hypot(*margins)
    return (value * math.exp(-half), value * math.exp(half)) if 0 < half < 10 else (None, None)


ALL: Final = "all"
"""Value of ``ranks_per_host`` if all ranks are on one host."""
TIMES: Final = ("schemes", "seconds", "logarithms")
"""Keys of the columns of :attr:`Certainty.times`."""
GROWTH: Final = ("growth_schemes", "growth_seconds", "growth_logarithms")
"""Keys of the columns of :attr:`Certainty.growth`."""
ERROR: Final = {"median": float, "worst": float, "covered": float, "of": int}
"""Keys of an error table and their types."""


def format_network(estimate: NetworkEstimate) -> str:
    """Return the text of a file for :func:`load_network`."""
    network, certainty = estimate.network, estimate.certainty
    tables: dict[str, Mapping[str, Any]] = {
        "network": {
            "name": network.name,
            "source": network.source,
            "ranks_per_host": ALL if network.is_one_host else network.ranks_per_host,
            "gamma": network.gamma,
            "overhead": network.site.overhead_seconds or None,
            "grids": network.grids or None,
        },
        "link": _stated(network.link),
        "inside": _stated(network.inside),
        "origin": estimate.origin,
        "topology": estimate.topology,
    }
    if certainty:
        tables["certainty"] = {
            "undetermined": certainty.undetermined,
            "notes": list(certainty.notes),
            "prices": certainty.costs.tolist(),
            "information": certainty.information.tolist(),
            **dict(zip(TIMES, map(list, zip(*certainty.times, strict=True)), strict=False)),
            **dict(zip(GROWTH, map(list, zip(*certainty.growth, strict=True)), strict=False)),
        }
        tables |= {f"error.{json.dumps(name)}": error for name, error in certainty.errors.items()}
    if network.is_one_host:
        del tables["link"]
    tables = {title: table for title, table in tables.items() if table or title == "origin"}
    lines = ["# Seconds per message (alpha), per byte (beta), per byte reduced (gamma); inside: within a host."]
    for title, table in tables.items():
        stated = {key: value for key, value in table.items() if value is not None}
        lines += ["", f"[{title}]"]
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in stated.items()]
    return "\n".join(lines) + "\n"


def load_network(path: Path) -> NetworkEstimate:
    """Read a network with the limits of its fit. Raises ValueError, one line that names file and key."""
    place = ""
    try:
        tables, place = read_toml(path), f"{path}: "
        return network_of_tables(tables, path)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from None


def network_of_tables(tables: Mapping[str, Any], path: Path) -> NetworkEstimate:
    """Return the network of the tables of a file. Raises ValueError, led by the key."""
    head = _table(tables, "network")
    ranks_per_host = head.get("ranks_per_host", 1)
    if ranks_per_host == ALL:
        ranks_per_host = EVERY_RANK
    elif type(ranks_per_host) is not int or not 1 <= ranks_per_host < EVERY_RANK:
        raise ValueError(f"network.ranks_per_host: must be a number from 1 to 2^31, or {ALL!r}")
    inside = _link(tables, "inside") if "inside" in tables else SHARED_MEMORY
    origin = _table({"origin": {}, **tables}, "origin")
    if wrong := [key for key, value in origin.items() if not isinstance(value, (str, int, float))]:
        raise ValueError(f"origin.{wrong[0]}: must be a text or a number")
    most = _count(origin["most_ranks"], "origin.most_ranks") if "most_ranks" in origin else None
    network = Network(
        name=str(head.get("name", path.stem)),
        link=inside if ranks_per_host == EVERY_RANK else _link(tables, "link"),
        source=str(head.get("source", path)),
        gamma=_cost_parameter(head, "network", "gamma"),
        site=Site(overhead_seconds=_cost_parameter({"overhead": 0.0, **head}, "network", "overhead")),
        inside=inside,
        ranks_per_host=ranks_per_host,
        grids=_grids(head.get("grids", [])),
    )
    if "topology" in tables:
        with about("topology"):
            network = with_topology(network, Choice.of("topologies", tables["topology"]))
    certainty = _certainty(tables) if "certainty" in tables else None
    return NetworkEstimate(network, most, certainty, origin, tables.get("topology", {}))


def _count(value: object, key: str) -> int:
    if type(value) is not int or not 1 <= value < MAX_INTEGER:
        raise ValueError(f"{key}: must be a number from 1 to 2^63, not {shortened(value)}")
    return value


def _grids(grids: Any) -> tuple[tuple[int, ...], ...]:
    lists = grids if isinstance(grids, list) else [grids]
    if not all(isinstance(sides, list) and sides for sides in lists):
        raise ValueError(f"network.grids: must be lists of sides, such as [[4, 4, 4]], not {shortened(grids)}")
    return tuple(tuple(_count(side, "network.grids") for side in sides) for sides in lists)


def _certainty(tables: Mapping[str, Any]) -> Certainty:
    table, error_tables = _table(tables, "certainty"), _table({"error": {}, **tables}, "error")
    try:
        costs, information = (np.array(table.get(name), np.float64) for name in ("prices", "information"))
        errors = {
            name: {key: None if error.get(key) is None else kind(error[key]) for key, kind in ERROR.items()}
            for name, error in error_tables.items()
        }
        times, growth = (
            [(str(scheme), float(seconds), float(error)) for scheme, seconds, error in columns]
            for columns in (zip(*(table.get(key, []) for key in keys), strict=True) for keys in (TIMES, GROWTH))
        )
        is_complete = PLAIN <= len(costs) <= len(COSTS) and information.shape == (len(costs), len(costs))
        is_finite = bool(np.isfinite(costs).all() and np.isfinite(information).all())
        rows = [*times, *growth]
        is_finite = is_finite and all(seconds > 0 and math.isfinite(error) for _, seconds, error in rows)
    except (AttributeError, TypeError, ValueError):
        is_complete = False
    if not (is_complete and is_finite and np.array_equal(information, information.T)):
        raise ValueError("certainty: not in the form that --save writes")
    return Certainty(costs, information, errors, times, list(map(str, table.get("notes") or ())), growth)


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name)
    if not isinstance(table, dict):
        raise ValueError(f"{name}: no table [{name}]")  # noqa: TRY004
    return table


def _link(tables: Mapping[str, Any], name: str) -> Link:
    table = _table(tables, name)
    if unknown := [key for key in table if key not in Link.__dataclass_fields__]:
        raise ValueError(f"{name}.{unknown[0]}: no cost of a link; known: {', '.join(Link.__dataclass_fields__)}")
    extra = table.get("extra", [])
    if not isinstance(extra, list) or len(extra) not in (0, len(SEGMENTS)):
        raise ValueError(f"{name}.extra: must be costs of bytes from {', '.join(map(str, SEGMENTS))} on")
    each = {f"extra {number}": cost for number, cost in enumerate(extra, 1)}
    costs = {key: _cost_parameter(table, name, key) for key in ("alpha", "beta", *table) if key != "extra"}
    if costs.get("overhead", 0.0) > costs["alpha"]:
        raise ValueError(f"{name}.overhead: {costs['overhead']} s is more than alpha, of which it is a part")
    return Link(**costs, extra=tuple(_cost_parameter(each, name, key) for key in each))


def _stated(link: Link) -> dict[str, Any]:
    """Return the table of a link, with the costs of a detailed one only if it has any."""
    optional = {"overhead": None, "distance_alpha": 0.0, "distance_beta": 0.0, "extra": ()}
    return {key: value for key, value in vars(link).items() if key not in optional or value != optional[key]}


def _cost_parameter(table: Mapping[str, Any], name: str, key: str) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        per_byte = "seconds per byte"
        unit = {"beta": f"{per_byte} (8e-9 for 1 Gbit/s)", "gamma": per_byte}.get(key, "seconds")
        raise ValueError(f"{name}.{key}: must be {unit}, from 0 to 1, not {shortened(value)}")
    return float(value)


def described(estimate: NetworkEstimate) -> JsonObject:
    """A network in JSON; of a fitted one also how far off it is."""
    network, certainty = estimate.network, estimate.certainty
    head: JsonObject = {
        "name": network.name,
        "source": network.source,
        **{f"{name.replace(' ', '_')}_seconds": cost for name, cost in costs_of(network).items()},
        "ranks_per_host": None if network.is_one_host else network.ranks_per_host,
    }
    if certainty:
        known = {"undetermined": certainty.undetermined, "notes": list(certainty.notes)}
        head |= {"fit": {**certainty.errors, **known}}
    return head


def costs_of(network: Network) -> dict[str, float]:
    """Return the cost parameters by name; those between hosts only where there are several."""
    link, inside = network.link, network.inside
    values: list[float | None] = [link.alpha, link.beta, network.gamma, inside.alpha, inside.beta]
    if not link.is_plain:
        values += [link.overhead, link.distance_alpha, link.distance_beta, *link.extra]
    stated = [*zip(COSTS, values, strict=False)][2 if network.is_one_host else 0 :]
    return {name: cost for name, cost in stated if cost is not None}
