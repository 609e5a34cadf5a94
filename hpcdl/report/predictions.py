"""What was predicted, beside what was measured, and how far the network that predicts can be trusted."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.fitting import PRICES
from hpcdl.prediction import FAR
from hpcdl.report.document import Document, Section, Table
from hpcdl.report.names import scheme_name
from hpcdl.report.quantities import NONE, digits, percent, plural, rate, seconds, volume
from hpcdl.report.reported import reported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.fitted import Beside, Fitted
    from hpcdl.analysis.scaling import Record
    from hpcdl.fabric.network import Network
    from hpcdl.prediction import Prediction

NOTE: Final = (
    "Predicted: the same program in virtual time on a model of the network. Of measured: predicted by measured "
    "time. A library's own collective is no program of ours: its time is that of the best published algorithm."
)
STEPS: Final = (
    *("training", "aggregation", "ranks", "predicted", "measured", "of measured", "computing"),
    *("images/s predicted", "images/s measured", ""),
)
STEPS_NOTE: Final = (
    "Predicted: the strategy itself in virtual time, messages on the model of the network; computing takes what a "
    "replay was told, or what a measured case says, on the next smaller number of ranks if there is one, in "
    "proportion to a rank's images."
)
BESIDE: Final = (
    "Predicted: the same programs in virtual time on one model of the network, whose few prices are fitted to all "
    "measured times at once. Where a row is off, its messages cost more or less than messages of their length "
    "usually do on this machine."
)
ERRORS: Final = {
    "fitted": "the times that the network was fitted to",
    "scheme_and_ranks_left_out": "each algorithm on each number of ranks, predicted from all others",
    "ranks_left_out": "each number of ranks, predicted from the other numbers",
}


def render(prediction: Prediction) -> str:
    """The document that ``hpcdl predict --json`` prints; SI units."""
    head = described(prediction.network, prediction.fitted)
    cases = [*prediction.rows, *prediction.steps]
    whole = {"schema": 1, "network": head, "cases": cases, "left_out": prediction.left_out}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def described(priced: Network, fitted: Fitted | None) -> dict[str, Any]:
    """A network in JSON; of a fitted one also how far off it is."""
    head: dict[str, Any] = {
        "name": priced.name,
        "source": priced.source,
        **{f"{name.replace(' ', '_')}_seconds": price for name, price, _ in _prices(priced)},
        "ranks_per_host": None if priced.is_one_host else priced.ranks_per_host,
    }
    if fitted:
        head |= {"fit": {**fitted.errors, "undetermined": fitted.found.undetermined}}
    return head


def beside(found: Beside | None) -> Section:
    """A run's own times, each with what a network fitted to all of them predicts; nothing without one."""
    title = "Predicted beside measured"
    if found is None:
        return Section(title)
    fabric = network(found.fitted.network, found.fitted)
    errors = found.fitted.errors
    within, beyond = (percent(errors[name]["median"], 1) for name in ("fitted", "scheme_and_ranks_left_out"))
    said = (
        f"Half of the {errors['fitted']['of']} predicted times are within {within} of the measured ones; of those "
        f"predicted from other algorithms and numbers of ranks only, within {beyond}."
    )
    points = list(fabric.points)
    if found.dear:
        points.append(
            f"{plural(found.dear, 'measured time')} more would take long to simulate; hpcdl predict does it."
        )
    tables = [*fabric.tables, _by_algorithm(found.rows), *predicted(found.rows).tables]
    return Section(title, [said, BESIDE, *fabric.paragraphs], points, tables)


def document(prediction: Prediction, title: str) -> Document:
    """The whole of it for a reader."""
    shown = [
        network(prediction.network, prediction.fitted),
        predicted(prediction.rows),
        steps(prediction.steps, compared=prediction.fitted is not None),
        reported(prediction.rows),
    ]
    if prediction.left_out:
        shown.append(Section("Not predicted", points=prediction.left_out))
    return Document(title, list(filter(None, shown)))


def network(priced: Network, fitted: Fitted | None) -> Section:
    """Its prices; of a fitted one also how far off it is."""
    paid = set(fitted.found.pays) if fitted else {name for name, _, _ in _prices(priced)}
    prices = [
        (name, seconds(price) if is_time else rate(1 / price) if price else "0")
        for name, price, is_time in _prices(priced)
        if name in paid
    ]
    where = "all ranks on one host" if priced.is_one_host else f"{priced.ranks_per_host} a host"
    paragraphs = [f"{priced.name} ({priced.source}), {where}."]
    tables = [Table("", ("price", "value"), prices)]
    points = []
    if fitted:
        if fitted.found.undetermined:
            points.append(
                f"What was measured cannot tell {', '.join(fitted.found.undetermined)} from one another: "
                "predictions of other algorithms than the measured ones may be wrong."
            )
        rows = [
            (what, percent(one["median"], 1), percent(one["worst"], 1), str(one["of"]))
            for name, what in ERRORS.items()
            for one in (fitted.errors[name],)
        ]
        tables.append(Table("Relative error", ("of", "median", "worst", "times"), rows))
    return Section("Network", paragraphs, points, tables)


def predicted(rows: Sequence[Record]) -> Section:
    """A table per collective and type: every algorithm by size and ranks."""
    groups: dict[str, list[Record]] = {}
    for row in rows:
        groups.setdefault(f"{row['collective']}, {row['dtype']}", []).append(row)
    header = ("size", "algorithm", "ranks", "predicted", "measured", "of measured", "")
    tables = [
        Table(title, header, [_cells(row) for row in sorted(group, key=_order)], 2).without_empty()
        for title, group in groups.items()
    ]
    return Section("Predicted times", [NOTE] if tables else [], tables=tables)


def steps(rows: Sequence[Record], *, compared: bool) -> Section:
    """A table per problem: every way of training it by ranks.

    ``compared``: the network is that of a run, so that it is to be asked how far off it is.
    """
    groups: dict[str, list[Record]] = {}
    for row in rows:
        batch = row["global_batch"] // (1 if row["scaling"] == "strong" else row["ranks"])
        what = ", ".join(filter(None, (f"{row['model']} on {row['dataset']}", row["backend"], row["dtype"])))
        groups.setdefault(f"{what}, {row['scaling']} scaling, {batch} images", []).append(row)
    tables = [
        Table(title, STEPS, [_step(row) for row in group], 2).without_empty() for title, group in groups.items()
    ]
    notes = [STEPS_NOTE] if rows else []
    ratios = [row["predicted_seconds"] / row["step_seconds"] for row in rows if row["step_seconds"]]
    if compared and ratios:
        within = percent(median([abs(ratio - 1) for ratio in ratios]), 1)
        notes.append(f"Half of the {len(ratios)} predicted steps are within {within} of the measured ones.")
    return Section("Predicted training steps", notes, tables=tables)


def _step(row: Record) -> tuple[str, ...]:
    measured = row["step_seconds"]
    return (
        row["training"],
        row["aggregation"] + (" (a library's)" if row["library_decides"] else ""),
        str(row["ranks"]),
        seconds(row["predicted_seconds"]),
        seconds(measured),
        digits(row["predicted_seconds"] / measured) if measured else NONE,
        seconds(row["compute_seconds"]),
        digits(row["predicted_images_per_second"]),
        digits(row["images_per_second"]),
        _beyond(row),
    )


def _beyond(row: Record) -> str:
    """A warning where the ranks are far more than were measured."""
    beyond = row.get("times_the_measured_ranks")
    return f"EXTRAPOLATED: {digits(beyond)} times the measured ranks" if beyond and beyond > FAR else ""


def _by_algorithm(rows: Sequence[Record]) -> Table:
    """Which algorithms a network explains, and which it does not."""
    ratios: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        ratio = row["predicted_seconds"] / row["time_p50_seconds"]
        ratios.setdefault((scheme_name(row), row["ranks"]), []).append(ratio)
    cells = [
        (name, str(ranks), *(digits(found) for found in (median(group), min(group), max(group))), str(len(group)))
        for (name, ranks), group in sorted(ratios.items())
    ]
    header = ("algorithm", "ranks", "median", "least", "most", "times")
    return Table("Predicted by measured time", header, cells, 1)


def _order(row: Mapping[str, Any]) -> tuple[int, str, int]:
    return row["message_bytes"], scheme_name(row), row["ranks"]


def _cells(row: Record) -> tuple[str, ...]:
    measured = row["time_p50_seconds"]
    return (
        volume(row["message_bytes"]),
        scheme_name(row) + (" (a library's)" if row.get("library_decides") else ""),
        str(row["ranks"]),
        seconds(row["predicted_seconds"]),
        seconds(measured),
        digits(row["predicted_seconds"] / measured) if measured else NONE,
        _beyond(row),
    )


def _prices(network: Network) -> list[tuple[str, float, bool]]:
    """Name, price and whether it is that of a message; the others are a byte's."""
    values = (network.link.alpha, network.link.beta, network.gamma, network.inside.alpha, network.inside.beta)
    found = [(name, value, name.endswith("alpha")) for name, value in zip(PRICES, values, strict=True)]
    return [one for one in found if not network.is_one_host or one[0] not in {"alpha", "beta"}]
