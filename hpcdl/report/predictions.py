"""Predicted times beside measured ones, errors of the network that predicts, and predicted meshes."""

import json
from collections.abc import Sequence
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.fabric.network import Network
from hpcdl.prediction.network_file import COSTS, PricedNetwork
from hpcdl.prediction.parallelism import Parallelism
from hpcdl.prediction.predict import Prediction
from hpcdl.report import published_results
from hpcdl.report.formats.cells import NONE, digits, interval, percent, rate, seconds, volume
from hpcdl.report.formats.document import Document, Section, Table
from hpcdl.report.run.method_names import scheme_name
from hpcdl.trace.files import JsonObject

PARALLELISM_NOTE: Final = (
    "Predicted: the programs of the steps in virtual time. A mesh is its split and data x model, or data x "
    "pipeline with the best number of microbatches among powers of two."
)
LAYERS: Final = ("layer", "|D| MB", "|W| MB", "GFLOP", "bytes/FLOP", "cheapest", "messages")
OF_PROBLEM: Final = ("model", "dataset", "global_batch", "ranks", "network", "times_the_measured_ranks")
"""Columns in the JSON document that all meshes share."""
MESHES: Final = ("mesh", "predicted", "measured", "")
OF_MESH: Final = ("predicted_seconds", "undetermined", "step_seconds", "case", "disturbed")
"""Columns of a mesh in the JSON document."""


def mesh_section(parallelisms: Sequence[Parallelism]) -> Section:
    """Return the tables of each training and number of ranks."""
    tables, points = [], []
    for mesh in parallelisms:
        like = mesh.meshes[0]
        what = f"{like.model}, {like.global_batch} images, {like.ranks} ranks"
        step = seconds(mesh.chosen.predicted_seconds)
        points.append(f"{what}: choose {mesh.chosen.parallelism}, {step} a step.{_measured(mesh)}")
        tables += [
            Table(f"Meshes: {what}", MESHES, _meshes(mesh)),
            Table(f"Layers: {what}", LAYERS, _layers(mesh)),
        ]
    return Section("Parallelism", [PARALLELISM_NOTE] if tables else [], points, tables)


def doubt(row: Record) -> str:
    """Return the marks of a predicted row."""
    shown = {
        "extrapolated": f"EXTRAPOLATED {digits(row.times_the_measured_ranks)}x",
        "undetermined": "UNDETERMINED",
        "disturbed": "DISTURBED",
    }
    return "; ".join(text for mark, text in shown.items() if mark in row.marks)


def mesh_records(parallelisms: Sequence[Parallelism]) -> list[JsonObject]:
    """Return the JSON records; SI units."""
    return [
        {
            **{name: getattr(one.meshes[0], name) for name in OF_PROBLEM},
            "chosen": one.chosen.parallelism,
            "fastest_measured": one.best.parallelism if one.best else None,
            "meshes": [
                {"mesh": mesh.parallelism, **{name: getattr(mesh, name) for name in OF_MESH}}
                for mesh in one.meshes
            ],
            "layers": [
                {
                    "name": layer.name,
                    "data_bytes": layer.sizes.data_bytes,
                    "weight_bytes": layer.sizes.weight_bytes,
                    "forward_backward_flop": layer.sizes.forward_backward_flop,
                    "cheapest": layer.cheapest,
                    "split_bytes": dict(layer.split_bytes),
                    "split_seconds": dict(layer.split_seconds),
                }
                for layer in one.layers
            ],
        }
        for one in parallelisms
    ]


def _measured(parallelism: Parallelism) -> str:
    if parallelism.best is None:
        return ""
    chosen = parallelism.chosen.step_seconds
    also = f", the chosen one {seconds(chosen)}" if chosen and parallelism.best is not parallelism.chosen else ""
    missing = "" if chosen else "; the chosen one was not measured"
    best = parallelism.best
    return f" Measured: {best.parallelism} is the fastest, {seconds(best.step_seconds)}{also}{missing}."


def _meshes(parallelism: Parallelism) -> list[tuple[str, ...]]:
    return [
        (
            str(mesh.parallelism),
            seconds(mesh.predicted_seconds),
            seconds(mesh.step_seconds),
            "; ".join(
                word
                for word, holds in (
                    ("chosen", mesh is parallelism.chosen),
                    ("fastest measured", mesh is parallelism.best),
                    (doubt(mesh), True),
                )
                if holds and word
            ),
        )
        for mesh in parallelism.meshes
    ]


def _layers(parallelism: Parallelism) -> list[tuple[str, ...]]:
    return [
        (
            layer.name,
            digits(layer.sizes.data_bytes / 1e6),
            digits(layer.sizes.weight_bytes / 1e6),
            digits(layer.sizes.forward_backward_flop / 1e9),
            digits(layer.split_bytes[layer.cheapest] / max(1, layer.sizes.forward_backward_flop)),
            layer.cheapest,
            ", ".join(f"{split} {seconds(time)}" for split, time in layer.split_seconds.items()),
        )
        for layer in parallelism.layers
    ]


NOTE: Final = (
    "Predicted: the same program in virtual time on a model of the network. Of measured: predicted by measured "
    "time. A library's own collective cannot be simulated: its time is that of the best published algorithm. "
    "95 %: by the uncertainty of the fitted costs and the errors of fitted times about as long, the scheme's own "
    "above all. DISTURBED: the "
    "measured time, or the compute times, are of a disturbed case. Simulated: ranks that stand for all by "
    "symmetry; all, where scheme or network has none."
)
STEPS: Final = (
    *(
        "training",
        "aggregation",
        "ranks",
        "predicted",
        "95 %",
        "measured",
        "error",
        "images/s (measured)",
        "staleness (measured)",
        "speed-up",
        "efficiency",
        "near-linear",
        "simulated",
    ),
    "",
)
TOPOLOGY_NOTE: Final = (
    "Messages share links fairly, and no packet is lost. Where TCP filled the queue of an oversubscribed link and "
    "lost packets, sums of 4 MiB took up to a third longer than predicted (two emulated switches)."
)
STEPS_NOTE: Final = (
    "Predicted: the strategy itself in virtual time, messages on the model of the network; compute times are "
    "those given to a replay, or measured ones of the next smaller number of ranks if there is one, in "
    "proportion to a rank's images. Encoders, decoders and sums of compressed gradients have the costs that they "
    "are measured at on this machine. 95 %: as of collectives, and of the simulated steps, which differ by "
    "jitter. Without a common step, a step is a global batch. Simulated: ranks that stand for all by symmetry; "
    "above 2,000,000 messages parts of a vector are then as long as its longest."
)
ERRORS: Final = {
    "fitted": "the times that the network was fitted to",
    "scheme_and_ranks_left_out": "each algorithm on each number of ranks, predicted from all others",
    "ranks_left_out": "each number of ranks, predicted from the other numbers",
}


def render(prediction: Prediction) -> str:
    """The document that ``hpcdl predict --json`` prints; SI units."""
    head = described(prediction.priced)
    cases = [row.row for row in (*prediction.rows, *prediction.steps)]
    whole: JsonObject = {"schema": 1, "network": head, "cases": cases, "left_out": prediction.left_out}
    if prediction.meshes:
        whole["parallelism"] = mesh_records(prediction.meshes)
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def described(priced: PricedNetwork) -> JsonObject:
    """A network in JSON; of a fitted one also how far off it is."""
    network, certainty = priced.network, priced.certainty
    head: JsonObject = {
        "name": network.name,
        "source": network.source,
        **{f"{name.replace(' ', '_')}_seconds": cost for name, cost in _costs(network).items()},
        "ranks_per_host": None if network.is_one_host else network.ranks_per_host,
    }
    if certainty:
        known = {"undetermined": certainty.undetermined, "notes": list(certainty.notes)}
        head |= {"fit": {**certainty.errors, **known}}
    return head


def document(prediction: Prediction, title: str) -> Document:
    """Return the prediction as a document."""
    shown = [
        network(prediction.priced),
        predicted(prediction.rows),
        steps(prediction.steps, compared=prediction.priced.certainty is not None),
        published_results.section(prediction.papers, [*prediction.rows, *prediction.steps]),
    ]
    if prediction.meshes:
        shown.append(mesh_section(prediction.meshes))
    if prediction.left_out:
        shown.append(Section("Not predicted", points=prediction.left_out))
    return Document(title, list(filter(None, shown)))


def network(priced: PricedNetwork) -> Section:
    """Its costs; of a fitted one also how well they are known, and how far off it is."""
    cluster, certainty = priced.network, priced.certainty
    unknown = certainty.undetermined if certainty else []
    costs = [
        (
            name,
            seconds(cost) if name.endswith("alpha") else rate(1 / cost) if cost else "0",
            "undetermined" if name in unknown else "",
        )
        for name, cost in _costs(cluster).items()
        if certainty is None or name in certainty.determined
    ]
    where = "all ranks on one host" if cluster.is_one_host else f"{cluster.ranks_per_host} a host"
    paragraphs = [f"{cluster.name} ({cluster.source}), {where}."]
    tables = [Table("", ("cost", "value", ""), costs).without_empty()]
    points = [TOPOLOGY_NOTE] if cluster.topology is not None else []
    if certainty:
        if unknown:
            points.append(
                f"The measured times do not determine {', '.join(unknown)}: another value explains it as well. "
                "Predicted times that depend on it by 10 % or more are marked UNDETERMINED; schemes must not be "
                "ranked by them. Measure shorter and longer vectors, or more schemes."
            )
        points += certainty.notes
        rows = [
            (what, *(percent(error[key], 1) for key in ("median", "worst", "covered")), str(error["of"]))
            for name, what in ERRORS.items()
            if (error := certainty.errors.get(name))
        ]
        header = ("of", "median", "worst", "within 95 % interval", "times")
        tables += [Table("Relative error", header, rows).without_empty()] if rows else []
    return Section("Network", paragraphs, points, tables)


def predicted(rows: Sequence[Record]) -> Section:
    """A table per collective and type: every algorithm by size and ranks."""
    groups: dict[str, list[Record]] = {}
    for row in rows:
        beside = f" beside {row.concurrent}" if row.concurrent else ""
        groups.setdefault(f"{row.collective}{beside}, {row.dtype}", []).append(row)
    header = ("size", "algorithm", "ranks", "predicted", "95 %", "measured", "of measured", "simulated", "")
    tables = [
        Table(title, header, [_cells(row) for row in sorted(group, key=_order)], 2).without_empty()
        for title, group in groups.items()
    ]
    return Section("Predicted times", [NOTE] if tables else [], _within(rows), tables)


def _within(rows: Sequence[Record]) -> list[str]:
    """Return in a sentence how near predicted times are to measured ones that nothing disturbed; none of one."""
    ratios = [
        (row.predicted_seconds or 0) / row.time_p50_seconds
        for row in rows
        if row.time_p50_seconds and "disturbed" not in row.marks
    ]
    if len(ratios) < 2:
        return []
    ends = f"{digits(min(ratios))} to {digits(max(ratios))}, median {digits(median(ratios))}"
    return [f"{len(ratios)} undisturbed times, predicted by measured: {ends}."]


def steps(rows: Sequence[Record], *, compared: bool) -> Section:
    """A table per problem: every way of training it by ranks.

    ``compared``: the network is fitted to a run, so that its error on measured steps is stated.
    """
    groups: dict[str, list[Record]] = {}
    for row in rows:
        batch = (row.global_batch or 0) // (1 if row.scaling == "strong" else row.ranks)
        what = ", ".join(filter(None, (f"{row.model} on {row.dataset}", row.backend, row.dtype)))
        groups.setdefault(f"{what}, {row.scaling} scaling, {batch} images", []).append(row)
    tables = [
        Table(title, STEPS, [_step(row, group) for row in group], 2).without_empty()
        for title, group in groups.items()
    ]
    notes = [STEPS_NOTE, _jitter(rows)] if rows else []
    ratios = [(row.predicted_seconds or 0) / row.step_seconds for row in rows if row.step_seconds]
    if compared and ratios:
        within = percent(median([abs(ratio - 1) for ratio in ratios]), 1)
        steps = f"Half of the {len(ratios)} predicted steps are" if len(ratios) > 1 else "The predicted step is"
        notes.append(f"{steps} within {within} of the measured ones; their computing was given.")
    return Section("Predicted training steps", notes, tables=tables)


def _jitter(rows: Sequence[Record]) -> str:
    low, high = (percent(bound(row.jitter or 0.0 for row in rows), 1) for bound in (min, max))
    size = low if low == high else f"{low} to {high}"
    return (
        f"Jitter of a rank's computing in a step: {size}, as in the trace unless --jitter or the case states it."
    )


def _step(row: Record, group: Sequence[Record]) -> tuple[str, ...]:
    """Return a row of :data:`STEPS`; speed-ups are against the predicted step on one rank of ``group``."""
    measured, single = row.step_seconds, next((other for other in group if other.ranks == 1), None)
    speed, base = row.predicted_images_per_second, single.predicted_images_per_second if single else None
    speedup = speed / base if speed and base else None
    efficiency = speedup / row.ranks if speedup else None
    near_linear = NONE if efficiency is None or row.ranks == 1 else "yes" if efficiency >= NEAR_LINEAR else "no"
    return (
        ", ".join(filter(None, (row.training, row.parallelism))),
        scheme_name(row) + (" (a library's)" if row.library_decides else ""),
        str(row.ranks),
        seconds(row.predicted_seconds),
        _interval(row),
        seconds(measured),
        f"{100 * ((row.predicted_seconds or 0) / measured - 1):+.1f} %" if measured else NONE,
        "" if row.lockstep else _beside(speed, row.images_per_second),
        _beside(row.predicted_staleness_mean, row.staleness_mean),
        digits(speedup),
        digits(efficiency),
        near_linear,
        str(row.simulated_ranks or NONE),
        doubt(row),
    )


def _interval(row: Record) -> str:
    low, high = row.predicted_low_seconds, row.predicted_high_seconds
    return "" if low is None or high is None or low == high else interval(low, high, seconds)


def _beside(predicted: float | None, measured: float | None) -> str:
    if predicted is None:
        return ""
    return digits(predicted) + ("" if measured is None else f" ({digits(measured)})")


def _order(row: Record) -> tuple[int, str, int]:
    return row.message_bytes or 0, scheme_name(row), row.ranks


def _cells(row: Record) -> tuple[str, ...]:
    measured = row.time_p50_seconds
    return (
        volume(row.message_bytes),
        scheme_name(row) + (" (a library's)" if row.library_decides else ""),
        str(row.ranks),
        seconds(row.predicted_seconds),
        _interval(row),
        seconds(measured),
        digits((row.predicted_seconds or 0) / measured) if measured else NONE,
        str(row.simulated_ranks or NONE),
        doubt(row),
    )


def _costs(network: Network) -> dict[str, float]:
    """Return the cost parameters by name; those between hosts only where there are several."""
    values = (network.link.alpha, network.link.beta, network.gamma, network.inside.alpha, network.inside.beta)
    return dict([*zip(COSTS, values, strict=True)][2 if network.is_one_host else 0 :])
