"""Predicted beside measured times, errors of a fitted network, meshes; the document of ``hpcdl predict``."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.prediction.network_file import NetworkEstimate, costs_of, described
from hpcdl.prediction.parallelism import LayerSplits, Parallelism
from hpcdl.prediction.predict import Prediction
from hpcdl.report.formats.cells import NONE, digits, percent, plural, rate, seconds, signed, volume
from hpcdl.report.formats.document import Document, Section, headed
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run import predicted_answers, published_results
from hpcdl.report.run.declaration import Declaration, value
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import Names, scheme_name
from hpcdl.trace.files import JsonObject

NOTE: Final = (
    "Predicted times are those of a simulation of the same program on a model of the network. A library's own "
    "collective cannot be simulated: its time is that of the best published algorithm. 95 %: interval from the "
    "uncertainty of the fitted cost parameters and from the errors of fitted times of similar length."
)
TOPOLOGY_NOTE: Final = (
    "Messages share links fairly, and no packet is lost. Where TCP filled the queue of an oversubscribed link and "
    "lost packets, allreduces of 4 MiB took up to a third longer than predicted (two emulated switches)."
)
STEPS_NOTE: Final = (
    "Predicted times are those of a simulation of the strategy on a model of the network. Compute times come from "
    "the replay, or from the run on the next smaller number of ranks, scaled by the images of a rank. The 95 % "
    "interval contains the error of the cost parameters, and the variation of simulated steps by jitter. Measured "
    "numbers are in parentheses."
)
LETTERS: Final = {
    "extrapolated": "E: far beyond the measured ranks",
    "undetermined": "U: depends on an undetermined cost parameter",
    "disturbed": "D: other load disturbed the measured time, or the compute times that the prediction uses",
}
"""Legend of the marks of a row."""
ERRORS: Final = {
    "fitted": "the times that the network was fitted to",
    "scheme_and_ranks_left_out": "each algorithm on each number of ranks, predicted from all others",
    "collective_left_out": "each collective, predicted from the others",
    "ranks_left_out": "each number of ranks, predicted from the other numbers",
}
PARALLELISM_NOTE: Final = (
    "Predicted times are those of a simulation of the steps. The name of a mesh is its split and data x model, or "
    "data x pipeline with the best number of microbatches among powers of two."
)
OF_PROBLEM: Final = ("model", "dataset", "global_batch", "ranks", "network", "times_the_measured_ranks")
"""Columns in the JSON document that all meshes share."""
OF_RUNS: Final = {"run", "date", "hosts", "mpi_library", "mpi_version", "hpcdl_version", "commit", "slurm_job",
                  "settings"}  # fmt: skip
"""Columns that records of a prediction do not have."""
OF_MESH: Final = ("predicted_seconds", "undetermined", "step_seconds", "case", "disturbed")
"""Columns of a mesh in the JSON document."""


def flags(row: Record) -> str:
    """Return the marks of a predicted row, one letter each."""
    return "".join(mark[0].upper() for mark in LETTERS if mark in row.marks)


def _scheme(row: Record) -> str:
    return scheme_name(row) + (" (a library's)" if row.library_decides else "")


def _beside(predicted: float | None, measured: float | None) -> str:
    if predicted is None:
        return ""
    return digits(predicted) + ("" if measured is None else f" ({digits(measured)})")


RANKS: Final = Column[Record]("ranks", lambda row: str(row.ranks), importance="name")
PREDICTED: Final = value(Record.predicted_seconds, importance="answer")
INTERVAL: Final = Column[Record]("95 %", predicted_answers.bounds_of, importance="answer")
ERROR: Final = Column[Record]("error", lambda row: signed(predicted_answers.ratio(row)), importance="answer")
SIMULATED: Final = Column[Record](
    "simulated ranks", lambda row: str(row.simulated_ranks or NONE), importance="detail"
)
FLAGS: Final = Column[Record]("flags", flags, importance="answer")
MEASURED: Final = ("step_seconds", "time_p50_seconds", "images_per_second", "staleness_mean")
"""Measured numbers, which are shown only beside predictions of the network that they were measured on."""
OPERATIONS: Final = (
    value(Record.message_bytes),
    Column[Record]("algorithm", _scheme),
    *(RANKS, PREDICTED, INTERVAL),
    value(Record.time_p50_seconds, "measured", importance="answer"),
    *(ERROR, SIMULATED, FLAGS),
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
    rows = [row.row for row in (*prediction.rows, *prediction.steps)]
    cases = [{name: value for name, value in row.items() if name not in OF_RUNS} for row in rows]
    whole: JsonObject = {"schema": 1, "network": described(prediction.estimate), "cases": cases}
    whole["left_out"] = prediction.left_out
    if prediction.meshes:
        whole["parallelism"] = list(map(_mesh_record, prediction.meshes))
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _not_measured(rows: Sequence[Record]) -> list[Record]:
    return [row.but(**dict.fromkeys(MEASURED)) for row in rows]


def document(prediction: Prediction, source: str) -> Document:
    """Return the prediction of a suite or a run, its ``source``, as a document that begins with its answers."""
    if not prediction.is_same_network:
        rows, trained = map(_not_measured, (prediction.rows, prediction.steps))
        split = [replace(training, meshes=_not_measured(training.meshes)) for training in prediction.meshes]
        prediction = replace(prediction, rows=rows, steps=trained, meshes=split)
    sections = [
        steps(prediction.steps),
        predicted(prediction.rows),
        published_results.section(prediction.papers, [*prediction.rows, *prediction.steps]),
        meshes(prediction.meshes),
        network(prediction.estimate),
        Section("Not predicted", points=prediction.left_out),
    ]
    title = f"hpcdl: {source} on {prediction.estimate.title}"
    badges, notes = predicted_answers.badges(prediction), predicted_answers.notes(prediction)
    return headed(title, predicted_answers.verdicts(prediction), sections, notes=notes, badges=badges)


def network(estimate: NetworkEstimate) -> Section:
    """Its costs; of a fitted one also how well they are known, and how far off it is."""
    cluster, certainty = estimate.network, estimate.certainty
    unknown = certainty.undetermined if certainty else []
    costs = []
    for name, cost in costs_of(cluster).items():
        if certainty is None or name in certainty.determined:
            shown = seconds(cost) if name.endswith("alpha") else rate(1 / cost) if cost else "0"
            costs.append((name, shown, "undetermined" if name in unknown else ""))
    where = plural(cluster.ranks_per_host, "rank", " per node")
    paragraphs = [
        f"{cluster.name} ({cluster.source}), {'all ranks on one host' if cluster.is_one_host else where}."
    ]
    tables = [Table("", ("cost parameter", "value", ""), costs).without_empty()]
    points = [TOPOLOGY_NOTE] if cluster.topology is not None else []
    if unknown:
        points.append(
            f"The measured times do not determine {', '.join(unknown)}. Predicted times that depend on it by "
            "10 % or more have the flag U: do not rank schemes by them; measure shorter and longer "
            "vectors, or more schemes."
        )
    points += certainty.notes if certainty else []
    rows = [
        (what, *(percent(error[key], 1) for key in ("median", "worst", "covered")), str(error["of"]))
        for name, what in ERRORS.items()
        if (error := estimate.errors.get(name))
    ]
    if rows:
        title = "Error of fitted times, and of times left out of the fit"
        header = ("times", "median", "worst", "within 95 %", "number")
        tables.append(Table(title, header, rows).without_empty())
    return Section("Network", paragraphs, points, tables)


def predicted(rows: Sequence[Record]) -> Section:
    """A table per collective, counts and type: every algorithm by size and ranks."""
    groups = group_by_key(
        (", ".join(filter(None, (row.collective or row.kind, row.counts, row.dtype or "bytes"))), row)
        for row in rows
    )
    order = lambda row: (row.message_bytes or 0, scheme_name(row), row.ranks)
    tables = [table(OPERATIONS, sorted(group, key=order), title, left=2) for title, group in groups.items()]
    return Section("Predicted times", [NOTE, *legend(rows)] if tables else [], tables=tables)


def legend(rows: Sequence[Record]) -> list[str]:
    """Return the meaning of the letters in the rows, in a line."""
    shown = [text for mark, text in LETTERS.items() if any(mark in row.marks for row in rows)]
    return [f"Flags: {'; '.join(shown)}."] if shown else []


def steps(rows: Sequence[Record]) -> Section:
    """A table per problem: every way of training it by ranks."""
    tables = [_steps_table(title, group) for title, group in predicted_answers.by_problem(rows).items()]
    jitter = sorted(row.jitter or 0.0 for row in rows)
    size = " to ".join(dict.fromkeys(map(percent, [*jitter[:1], *jitter[-1:]])))
    notes = [STEPS_NOTE, f"Jitter of a rank's computing in a step: {size}.", *legend(rows)] if rows else []
    return Section("Predicted training steps", notes, tables=tables)


def _steps_table(title: str, group: Sequence[Record]) -> Table:
    """Return the table of a problem; a method that all rows share stands in the title, as the suite writes it."""
    methods = {", ".join(filter(None, (row.training, _scheme(row), row.parallelism))) for row in group}
    names, columns = Names(group), _step_columns(group)
    if len(methods) == 1:
        return table(columns, group, f"{title}: {methods.pop()}", left=0)
    return table((Column[Record]("method", names), *columns), group, title)


def _step_columns(group: Sequence[Record]) -> Sequence[Column[Record]]:
    """Return the columns of a problem's steps; efficiencies are against the predicted step on one rank."""
    gains = {id(row): speedup for row in group if (speedup := predicted_answers.speedup(row, group))}

    def efficiency(row: Record) -> str:
        return digits(gains[id(row)].value / row.ranks) if id(row) in gains else NONE

    def near_linear(row: Record) -> str:
        is_judged = id(row) in gains and row.ranks > 1
        return predicted_answers.near_linear(row, gains[id(row)]) if is_judged else NONE

    return (
        *(RANKS, PREDICTED, INTERVAL),
        value(Record.step_seconds, "measured", importance="answer"),
        ERROR,
        Column("images/s", lambda row: _beside(row.predicted_images_per_second, row.images_per_second)),
        Column("buckets during backward", lambda row: volume(row.bucket_bytes)),
        Column("staleness", lambda row: _beside(row.predicted_staleness_mean, row.staleness_mean)),
        Column("efficiency", efficiency, importance="answer"),
        Column("near-linear", near_linear, importance="answer"),
        *(SIMULATED, FLAGS),
    )


def meshes(parallelisms: Sequence[Parallelism]) -> Section:
    """Return the tables of each training and number of ranks."""
    tables = []
    for training in parallelisms:
        like, chosen, best, rows = training.meshes[0], training.chosen, training.best, []
        what = f"{like.model}, {like.global_batch} images, {like.ranks} ranks"
        for mesh in training.meshes:
            words = ["chosen" * (mesh is chosen), "fastest measured" * (mesh is best), flags(mesh)]
            times = seconds(mesh.predicted_seconds), seconds(mesh.step_seconds)
            rows.append((str(mesh.parallelism), *times, "; ".join(filter(None, words))))
        tables += [
            Table(f"Meshes: {what}", ("mesh", "predicted", "measured", ""), rows).without_empty(),
            table(LAYERS, training.layers, f"Layers: {what}"),
        ]
    return Section("Parallelism", [PARALLELISM_NOTE] if tables else [], tables=tables)


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


FITTED_NOTE: Final = (
    "Predicted times are those of a simulation of the same programs on one model of the network. Its few cost "
    "parameters are fitted to all measured times. If a prediction is far off, the messages of this row take more "
    "or less time than other messages of their length on this machine."
)


def predicted_page(findings: Findings) -> Section:
    """Return each measured time with its prediction, if a network could be fitted."""
    section, rows = predicted_short(findings), findings.predicted.rows if findings.predicted else []
    paragraphs, tables = [*section.paragraphs, *legend(rows)], [*section.tables, *predicted(rows).tables]
    return replace(section, paragraphs=paragraphs, tables=tables)


def _median_errors(estimate: NetworkEstimate) -> tuple[str, str]:
    """Return the median error of fitted times, and of those of algorithms and numbers of ranks left out."""
    known = (estimate.errors[name]["median"] for name in ("fitted", "scheme_and_ranks_left_out"))
    within, beyond = (percent(error, 1) for error in known)
    return within, beyond


def predicted_short(findings: Findings) -> Section:
    """Return the fitted network, and the errors of its predictions by algorithm."""
    title, prediction = "Predicted and measured", findings.predicted
    if prediction is None:
        return Section(title)
    fabric = network(prediction.estimate)
    within, beyond = _median_errors(prediction.estimate)
    count = prediction.estimate.errors["fitted"]["of"]
    line = (
        f"Half of the {count} predicted times are within {within} of the measured ones, and "
        f"within {beyond} if each algorithm and number of ranks is predicted from the others."
    )
    points, tables = [*fabric.points, *prediction.left_out], [_by_algorithm(prediction.rows), *fabric.tables]
    return Section(title, [line, FITTED_NOTE, *fabric.paragraphs], points, tables)


def _by_algorithm(rows: Sequence[Record]) -> Table:
    ratios = group_by_key(
        ((scheme_name(row), row.ranks), predicted_answers.ratio(row) or math.nan) for row in rows
    )
    cells = [
        (name, str(ranks), *map(signed, (median(group), min(group), max(group))), str(len(group)))
        for (name, ranks), group in sorted(ratios.items(), key=lambda item: -abs(math.log(median(item[1]))))
    ]
    header = ("algorithm", "ranks", "median", "lowest", "highest", "times")
    return Table("Error of predictions by algorithm", header, cells, order="largest error first")


FITTED: Final = Declaration(130, predicted_page, predicted_short, rows=30)
