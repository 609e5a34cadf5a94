"""Predicted times beside measured ones, errors of the network that predicts, and predicted meshes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.prediction.network_file import PricedNetwork, costs_of, described
from hpcdl.prediction.parallelism import LayerSplits, Parallelism
from hpcdl.prediction.predict import Prediction
from hpcdl.report.formats.cells import NONE, digits, interval, percent, rate, seconds
from hpcdl.report.formats.document import Column, Document, Section, Table, table
from hpcdl.report.run import published_results
from hpcdl.report.run.columns import value
from hpcdl.report.run.method_names import scheme_name
from hpcdl.trace.files import JsonObject

NOTE: Final = (
    "Predicted: the same program in virtual time on a model of the network. Of measured: predicted by measured "
    "time. A library's own collective cannot be simulated: its time is that of the best published algorithm. "
    "95 %: by the uncertainty of the fitted costs and the errors of fitted times about as long, the scheme's own "
    "above all. DISTURBED: the measured time, or the compute times, are of a disturbed case. Simulated: ranks "
    "that stand for all by symmetry; all, where scheme or network has none."
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


PARALLELISM_NOTE: Final = (
    "Predicted: the programs of the steps in virtual time. A mesh is its split and data x model, or data x "
    "pipeline with the best number of microbatches among powers of two."
)
OF_PROBLEM: Final = ("model", "dataset", "global_batch", "ranks", "network", "times_the_measured_ranks")
"""Columns in the JSON document that all meshes share."""
OF_RUNS: Final = {"run", "date", "hosts", "mpi_library", "mpi_version", "hpcdl_version", "commit", "slurm_job",
                  "settings"}  # fmt: skip
"""Columns that records of a prediction do not have."""
OF_MESH: Final = ("predicted_seconds", "undetermined", "step_seconds", "case", "disturbed")
"""Columns of a mesh in the JSON document."""


def doubt(row: Record) -> str:
    """Return the marks of a predicted row."""
    shown = {
        "extrapolated": f"EXTRAPOLATED {digits(row.times_the_measured_ranks)}x",
        "undetermined": "UNDETERMINED",
        "disturbed": "DISTURBED",
    }
    return "; ".join(text for mark, text in shown.items() if mark in row.marks)


def _ratio(row: Record) -> float | None:
    """Return the predicted time by the measured one; None if it was not measured."""
    measured = row.step_seconds if row.is_training else row.time_p50_seconds
    return (row.predicted_seconds or 0) / measured if measured else None


def _error(row: Record) -> str:
    ratio = _ratio(row)
    return NONE if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _scheme(row: Record) -> str:
    return scheme_name(row) + (" (a library's)" if row.library_decides else "")


def _interval(row: Record) -> str:
    low, high = row.predicted_low_seconds, row.predicted_high_seconds
    return "" if low == high else interval(low, high, seconds)


def _beside(predicted: float | None, measured: float | None) -> str:
    if predicted is None:
        return ""
    return digits(predicted) + ("" if measured is None else f" ({digits(measured)})")


RANKS: Final = Column[Record]("ranks", lambda row: str(row.ranks))
PREDICTED: Final = value(Record.predicted_seconds, importance="answer")
INTERVAL: Final = Column[Record]("95 %", _interval, importance="answer")
SIMULATED: Final = Column[Record]("simulated", lambda row: str(row.simulated_ranks or NONE), importance="detail")
DOUBT: Final = Column[Record]("", doubt)
OPERATIONS: Final = (
    value(Record.message_bytes),
    Column[Record]("algorithm", _scheme),
    *(RANKS, PREDICTED, INTERVAL),
    value(Record.time_p50_seconds, "measured", importance="answer"),
    Column[Record]("of measured", lambda row: digits(_ratio(row)), importance="answer"),
    *(SIMULATED, DOUBT),
)
LAYERS: Final = (
    Column[LayerSplits]("layer", lambda layer: layer.name),
    Column[LayerSplits]("|D| MB", lambda layer: digits(layer.data_bytes / 1e6)),
    Column[LayerSplits]("|W| MB", lambda layer: digits(layer.weight_bytes / 1e6)),
    Column[LayerSplits]("GFLOP", lambda layer: digits(layer.forward_backward_flop / 1e9)),
    Column[LayerSplits](
        "bytes/FLOP", lambda layer: digits(layer.split_bytes[layer.cheapest] / max(1, layer.forward_backward_flop))
    ),
    Column[LayerSplits]("cheapest", lambda layer: layer.cheapest),
    Column[LayerSplits](
        "messages",
        lambda layer: ", ".join(f"{split} {seconds(time)}" for split, time in layer.split_seconds.items()),
    ),
)


def render(prediction: Prediction) -> str:
    """The document that ``hpcdl predict --json`` prints; SI units."""
    head = described(prediction.priced)
    rows = [row.row for row in (*prediction.rows, *prediction.steps)]
    cases = [{name: value for name, value in row.items() if name not in OF_RUNS} for row in rows]
    whole: JsonObject = {"schema": 1, "network": head, "cases": cases, "left_out": prediction.left_out}
    if prediction.meshes:
        whole["parallelism"] = list(map(_mesh_record, prediction.meshes))
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def document(prediction: Prediction, title: str) -> Document:
    """Return the prediction as a document."""
    shown = [
        network(prediction.priced),
        predicted(prediction.rows),
        steps(prediction.steps, compared=prediction.priced.certainty is not None),
        published_results.section(prediction.papers, [*prediction.rows, *prediction.steps]),
        meshes(prediction.meshes),
        Section("Not predicted", points=prediction.left_out),
    ]
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
        for name, cost in costs_of(cluster).items()
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
    order = lambda row: (row.message_bytes or 0, scheme_name(row), row.ranks)
    tables = [table(OPERATIONS, sorted(group, key=order), title, left=2) for title, group in groups.items()]
    return Section("Predicted times", [NOTE] if tables else [], _within(rows), tables)


def _within(rows: Sequence[Record]) -> list[str]:
    """Return in a sentence how near predicted times are to measured ones that nothing disturbed; none of one."""
    ratios = [ratio for row in rows if "disturbed" not in row.marks and (ratio := _ratio(row)) is not None]
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
    tables = [table(_step_columns(group), group, title, left=2) for title, group in groups.items()]
    notes = [STEPS_NOTE, _jitter(rows)] if rows else []
    ratios = [ratio for row in rows if (ratio := _ratio(row)) is not None]
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


def _step_columns(group: Sequence[Record]) -> Sequence[Column[Record]]:
    """Return the columns of a problem's steps; speed-ups are against the predicted step on one rank."""
    base = next((row.predicted_images_per_second for row in group if row.ranks == 1), None)

    def speedup(row: Record) -> float | None:
        speed = row.predicted_images_per_second
        return speed / base if speed and base else None

    def efficiency(row: Record) -> float | None:
        return gain / row.ranks if (gain := speedup(row)) else None

    def near_linear(row: Record) -> str:
        reached = efficiency(row)
        return NONE if reached is None or row.ranks == 1 else "yes" if reached >= NEAR_LINEAR else "no"

    def images(row: Record) -> str:
        return "" if row.lockstep else _beside(row.predicted_images_per_second, row.images_per_second)

    return (
        Column("training", lambda row: ", ".join(filter(None, (row.training, row.parallelism)))),
        Column("aggregation", _scheme),
        *(RANKS, PREDICTED, INTERVAL),
        value(Record.step_seconds, "measured", importance="answer"),
        Column("error", _error, importance="answer"),
        Column("images/s (measured)", images),
        Column("staleness (measured)", lambda row: _beside(row.predicted_staleness_mean, row.staleness_mean)),
        Column("speed-up", lambda row: digits(speedup(row))),
        Column("efficiency", lambda row: digits(efficiency(row))),
        Column("near-linear", near_linear, importance="answer"),
        *(SIMULATED, DOUBT),
    )


def meshes(parallelisms: Sequence[Parallelism]) -> Section:
    """Return the tables of each training and number of ranks."""
    tables, points = [], []
    for training in parallelisms:
        like, chosen, best = training.meshes[0], training.chosen, training.best
        what = f"{like.model}, {like.global_batch} images, {like.ranks} ranks"
        choice = f"choose {chosen.parallelism}, {seconds(chosen.predicted_seconds)} a step."
        points.append(f"{what}: {choice}{_fastest(chosen, best)}")
        rows = []
        for mesh in training.meshes:
            words = ["chosen" * (mesh is chosen), "fastest measured" * (mesh is best), doubt(mesh)]
            times = seconds(mesh.predicted_seconds), seconds(mesh.step_seconds)
            rows.append((str(mesh.parallelism), *times, "; ".join(filter(None, words))))
        tables += [
            Table(f"Meshes: {what}", ("mesh", "predicted", "measured", ""), rows),
            table(LAYERS, training.layers, f"Layers: {what}"),
        ]
    return Section("Parallelism", [PARALLELISM_NOTE] if tables else [], points, tables)


def _fastest(chosen: Record, best: Record | None) -> str:
    """Return in a sentence which mesh was measured to be the fastest; empty if none was measured."""
    if best is None:
        return ""
    step = chosen.step_seconds
    also = f", the chosen one {seconds(step)}" if step and best is not chosen else ""
    missing = "" if step else "; the chosen one was not measured"
    return f" Measured: {best.parallelism} is the fastest, {seconds(best.step_seconds)}{also}{missing}."


def _mesh_record(training: Parallelism) -> JsonObject:
    """Return the JSON record of a training's meshes; SI units."""
    return {
        **{name: getattr(training.meshes[0], name) for name in OF_PROBLEM},
        "chosen": training.chosen.parallelism,
        "fastest_measured": training.best.parallelism if training.best else None,
        "meshes": [
            {"mesh": mesh.parallelism, **{name: getattr(mesh, name) for name in OF_MESH}}
            for mesh in training.meshes
        ],
        "layers": list(map(asdict, training.layers)),
    }
