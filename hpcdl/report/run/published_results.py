"""Figures of papers next to ours: data of ``hpcdl/papers``, matched with the cases of a suite.

A paper's file has its ``source``, ``notes``, ``[[volumes]]`` of networks at batch 1024, and ``[[results]]``: a
``quantity`` of :data:`QUANTITIES`, the ``case`` (fields of a record, as texts), and the published ``values`` by
ranks, or only the ``ranks`` that the paper did not try. ``base`` has fields of the case on one rank. A figure is
reproduced within 10 %, or within the ``scatter`` of the source's own numbers, and near within 25 %. Figures on
``fitted`` ranks determined a parameter and prove nothing. Results whose source does not state what a simulation
needs have no ``case``, but name it: ``not_stated``.
"""

import inspect
import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Final

from hpcdl import registry
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.suite_tables import columns_with
from hpcdl.nn.volumes import volumes
from hpcdl.report.formats.cells import NONE, digits, plural
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.declaration import Answer
from hpcdl.suite import PAPERS
from hpcdl.trace.files import JsonMapping, JsonObject

IMAGES: Final = 1_281_167
"""Images of an epoch of ImageNet."""
VOLUMES: Final = {
    "weight_bytes": ("MB of weights (|W|)", 1e6),
    "data_bytes": ("MB of data (|D|)", 1e6),
    "forward_backward_flop": ("TFLOP", 1e12),
}


def _time(record: Record) -> float:
    """Return the time of a step or an operation, predicted where it is a prediction (s)."""
    measured = record.time_p50_seconds if record.kind == "collective" else None
    times = (measured, record.predicted_seconds, record.step_seconds, record.time_p50_seconds)
    return next(float(time) for time in times if time)


def _images_a_second(record: Record) -> float:
    return (record.global_batch or 0) / _time(record)


def _hours(epochs: float, images_a_second: float | None) -> float:
    return epochs * IMAGES / (images_a_second or math.nan) / 3600


QUANTITIES: Final[dict[str, Callable[[Record, Record, float], float]]] = {
    "operations a second": lambda record, _base, _epochs: 1 / _time(record),
    "images a second": lambda record, _base, _epochs: _images_a_second(record),
    "speed-up per image": lambda record, base, _epochs: _images_a_second(record) / _images_a_second(base),
    "efficiency": lambda record, base, _epochs: _images_of_a_rank(record) / _images_of_a_rank(base),
    "hours": lambda record, _base, epochs: _hours(epochs, _images_a_second(record)),
}
"""Quantity of a record, of its base (the same network on one rank, or as stated), and of a number of epochs."""
OF_BASE: Final = ("speed-up per image", "efficiency")
"""Quantities that are relative to the base."""
REPRODUCED: Final = 0.1
"""Largest relative error of a reproduced figure, unless the source's own numbers scatter more."""
JUDGED: Final = ("yes", "near", "no")
"""Verdicts on figures that a simulation could miss."""
NEAR: Final = 0.25
"""Largest relative error of a figure that is near."""
MEANING: Final = "Reproduced: within 10 %, or the scatter of the source's own numbers. Near: within 25 %."
PHRASES: Final = {"efficiency": "an efficiency of {}", "speed-up per image": "a speed-up per image of {}"}
"""Quantities with their number; a unit stands behind the number."""


def _images_of_a_rank(record: Record) -> float:
    return _images_a_second(record) / record.ranks


def _difference(first: float | None, other: float | None) -> float | None:
    return None if first is None or other is None else first - other


COMPUTED: Final[dict[str, Callable[[Record], float | None]]] = {
    "diverged": lambda record: float(record.diverged_step is not None),
    "accuracy_gap": lambda record: _difference(record.train_accuracy, record.final_accuracy),
}
"""Numbers that are computed of several fields of a record, by name; None: unknown."""


def number(record: Record, field: str) -> float | None:
    """Return a field of a record, or a number of :data:`COMPUTED`; None if it is unknown."""
    if field in COMPUTED:
        return COMPUTED[field](record)
    value = record.stated(field)
    if value is None:  # one that missed its target needs more than any other
        return math.inf if field.endswith("_to_target") and record.target_accuracy is not None else None
    return float(value)


@dataclass(frozen=True)
class Figure:
    """A figure of a paper and ours."""

    name: str
    quantity: str
    ranks: int | None
    published: float | None
    """None: the paper did not try it."""
    here: float
    """Not a number if the source does not state what a simulation needs."""
    scatter: float
    place: str
    fitted: bool = False
    not_stated: str = ""

    @property
    def error(self) -> float:
        """The relative error of ours; not a number without both figures."""
        return self.here / (self.published or math.nan) - 1

    @property
    def sentence(self) -> str:
        """Both numbers, of which the paper may lack its own."""
        ranks = f" on {self.ranks} ranks" if self.ranks else ""
        number = PHRASES.get(self.quantity, f"{{}} {self.quantity}").format(digits(self.here))
        text = f"for {self.name}{ranks} the simulation has {number}"
        published = f"Not reproduced: {text}, the paper {digits(self.published)}."
        return f"Not in the paper: {text}." if self.published is None else published

    @property
    def verdict(self) -> str:
        """One of :data:`JUDGED`, "fitted", or what the source does not state."""
        if self.not_stated or self.fitted:
            return f"not stated: {self.not_stated}" if self.not_stated else "fitted"
        if self.published is None:
            return NONE
        return "yes" if abs(self.error) <= self.scatter else "near" if abs(self.error) <= NEAR else "no"


FIGURES: Final = (
    Column[Figure]("training or collective", lambda figure: figure.name),
    Column[Figure]("quantity", lambda figure: figure.quantity),
    Column[Figure]("ranks", lambda figure: str(figure.ranks or NONE)),
    Column[Figure]("published", lambda figure: digits(figure.published), importance="answer"),
    Column[Figure]("simulated", lambda figure: digits(figure.here), importance="answer"),
    Column[Figure](
        "error",
        lambda figure: NONE if math.isnan(figure.error) else f"{100 * figure.error:+.0f} %",
        importance="answer",
    ),
    Column[Figure]("reproduced", lambda figure: figure.verdict, importance="answer"),
    Column[Figure]("place in the paper", lambda figure: figure.place, importance="detail"),
)


def _data(paper: str) -> JsonObject:
    return tomllib.loads((PAPERS / f"{paper}.toml").read_text(encoding="utf-8"))


def figures(paper: str, records: Sequence[Record]) -> list[Figure]:
    """Return the figures of ``paper`` that ``records`` have a case for, and those of its volumes."""
    data, good = _data(paper), [record for record in records if not record.error]
    ours = [figure for volumes in data.get("volumes", ()) for figure in _volumes(volumes)]
    return ours + [figure for results in data.get("results", ()) for figure in _results(results, good)]


def _volumes(stated: JsonMapping) -> Iterator[Figure]:
    model = registry.find("models", stated["name"])
    classes = list(inspect.signature(model).parameters.values())[1].default
    shape = (224, 224, 3)
    sizes = volumes(model(shape, classes, **stated.get("settings", {})), shape, 1024)
    for field, value in stated["value"].items():
        quantity, unit = VOLUMES[field]
        here = getattr(sizes, field) / unit
        yield Figure(
            stated["name"], quantity, None, value / unit, here, REPRODUCED, "table of volumes, batch 1024"
        )


def _alike(case: JsonMapping, records: Sequence[Record]) -> list[Record]:
    """Return the records with the fields of ``case``."""
    return [record for record in records if all(str(record.stated(key)) == str(case[key]) for key in case)]


def _results(stated: JsonMapping, records: Sequence[Record]) -> Iterator[Figure]:
    values = {int(ranks): value for ranks, value in stated.get("values", {}).items()}
    scatter, place = stated.get("scatter", REPRODUCED), stated.get("place", "not in the paper")
    name, quantity = stated["name"], stated["quantity"]
    if missing := stated.get("not_stated"):
        for ranks, value in values.items():
            yield Figure(name, quantity, ranks, value, math.nan, scatter, place, not_stated=missing)
        return
    case = stated["case"]
    machine = {key: case[key] for key in case if key in columns_with("machine")}
    single = _alike({"model": case.get("model"), "ranks": 1, **machine}, records)
    base = {"ranks": 1, **stated.get("base", {})}
    stated_base = _alike({**case, **base}, records) if "base" in stated else []
    by_ranks = {record.ranks: record for record in (*single, *_alike(case, records), *stated_base)}
    for ranks in values or stated["ranks"]:
        if ranks not in by_ranks or (quantity in OF_BASE and base["ranks"] not in by_ranks):
            continue
        epochs, fitted = stated.get("epochs", {}).get(str(ranks), 0), ranks in stated.get("fitted", ())
        here = QUANTITIES[quantity](by_ranks[ranks], by_ranks.get(base["ranks"], by_ranks[ranks]), epochs)
        yield Figure(name, quantity, ranks, values.get(ranks), here, scatter, place, fitted)


def answer(papers: Sequence[str], records: Sequence[Record]) -> Answer | None:
    """Return how many figures are reproduced, what that means, those missed, and the best untried."""
    known = [figure for paper in papers for figure in figures(paper, records)]
    yes, near, no = ([figure for figure in known if figure.verdict == word] for word in JUDGED)
    if not (judged := len(yes) + len(near) + len(no)):
        return None
    rest = f", {len(near)} nearly and {len(no)} not"
    details = [MEANING]
    if fitted := sum(figure.fitted for figure in known):
        details.append(f"Not counted: {plural(fitted, 'figure')}, to which a parameter was fitted.")
    if silent := sum(bool(figure.not_stated) for figure in known):
        details.append(f"Not simulated: {plural(silent, 'figure')} whose sources do not state what is needed.")
    untried = sorted((figure for figure in known if figure.published is None), key=attrgetter("here"))
    no.sort(key=lambda figure: -abs(figure.error))
    details += [figure.sentence for figure in [*no, *untried[-1:]]]
    return Answer(f"Of {plural(judged, 'published figure')} the simulation reproduces {len(yes)}{rest}.", details)


def charts(papers: Sequence[str], records: Sequence[Record]) -> list[Intervals]:
    """Return simulated / published of each paper: median and range of its figures without fitted ones."""
    spans = dict[str, tuple[float, float, float]]()
    for paper in papers:
        known = [1 + one.error for one in figures(paper, records) if one.verdict in JUDGED]
        if known:
            label = f"{paper.replace('_', ' ')}: {plural(len(known), 'figure')}"
            spans[label] = median(known), min(known), max(known)
    note = "Median and range of a paper's figures; fitted ones are left out."
    chart = Intervals(
        "Simulated / published", [*spans], [*spans.values()], Axis("simulated / published"), 1.0, note
    )
    return [chart] if spans else []


def section(papers: Sequence[str], records: Sequence[Record]) -> Section:
    """Return one table per paper: published, here, their ratio; the largest number of ranks first."""
    tables = []
    for paper in papers:
        ours, data = sorted(figures(paper, records), key=lambda figure: -(figure.ranks or 0)), _data(paper)
        title, notes = f"{paper}: {data['source']}", data.get("notes", ())
        tables += [table(FIGURES, ours, title, notes, left=2, order="most ranks first")] if ours else []
    return Section("Published and simulated", tables=tables, per="paper")
