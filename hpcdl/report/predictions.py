"""What was predicted, beside what was measured, and how far the network that predicts can be trusted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.fitting import PRICES
from hpcdl.prediction import FAR
from hpcdl.report.document import Document, Section, Table
from hpcdl.report.names import scheme_name
from hpcdl.report.quantities import NONE, digits, percent, rate, seconds, volume
from hpcdl.report.reported import reported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.fabric.network import Network
    from hpcdl.prediction import Fitted, Prediction

NOTE: Final = (
    "Predicted: the same program in virtual time on a model of the network. Of measured: predicted by measured "
    "time. A library's own collective is no program of ours: its time is that of the best published algorithm."
)
ERRORS: Final = {
    "fitted": "the times that the network was fitted to",
    "scheme_and_ranks_left_out": "each algorithm on each number of ranks, predicted from all others",
    "ranks_left_out": "each number of ranks, predicted from the other numbers",
}


def render(prediction: Prediction) -> str:
    """The document that ``hpcdl predict --json`` prints; SI units."""
    network = prediction.network
    head: dict[str, Any] = {
        "name": network.name,
        "source": network.source,
        **{f"{name.replace(' ', '_')}_seconds": price for name, price, _ in _prices(network)},
        "ranks_per_host": None if network.is_one_host else network.ranks_per_host,
    }
    if prediction.fitted:
        head |= {"fit": {**prediction.fitted.errors, "undetermined": prediction.fitted.found.undetermined}}
    whole = {"schema": 1, "network": head, "cases": prediction.rows, "left_out": prediction.left_out}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def document(prediction: Prediction, title: str) -> Document:
    """The whole of it for a reader."""
    shown = [network(prediction.network, prediction.fitted), predicted(prediction.rows), reported(prediction.rows)]
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
    return Section("Predicted times", [NOTE], tables=tables)


def _order(row: Mapping[str, Any]) -> tuple[int, str, int]:
    return row["message_bytes"], scheme_name(row), row["ranks"]


def _cells(row: Record) -> tuple[str, ...]:
    measured, beyond = row["time_p50_seconds"], row["times_the_measured_ranks"]
    return (
        volume(row["message_bytes"]),
        scheme_name(row) + (" (a library's)" if row["library_decides"] else ""),
        str(row["ranks"]),
        seconds(row["predicted_seconds"]),
        seconds(measured),
        digits(row["predicted_seconds"] / measured) if measured else NONE,
        f"EXTRAPOLATED: {digits(beyond)} times the measured ranks" if beyond and beyond > FAR else "",
    )


def _prices(network: Network) -> list[tuple[str, float, bool]]:
    """Name, price and whether it is that of a message; the others are a byte's."""
    values = (network.link.alpha, network.link.beta, network.gamma, network.inside.alpha, network.inside.beta)
    found = [(name, value, name.endswith("alpha")) for name, value in zip(PRICES, values, strict=True)]
    return [one for one in found if not network.is_one_host or one[0] not in {"alpha", "beta"}]
