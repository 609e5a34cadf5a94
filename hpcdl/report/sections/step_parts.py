"""Parts of a step: figure of its time, bubbles of pipelines, memory and consensus, staleness of gradients."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from hpcdl.analysis.run.record import Key, Record, group_by_key
from hpcdl.registry import parts
from hpcdl.report.formats.cells import NONE, digits, percent, seconds, spread
from hpcdl.report.formats.document import Axis, Bars, Section
from hpcdl.report.formats.tables import Column, Table
from hpcdl.report.run.declaration import EVIDENCE, METHOD, RANKS, Answer, Declaration, median, per_setting, stated
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, largest_first, rows
from hpcdl.training.parts.sections import bubble_share

PIPELINE_NOTE: Final = (
    'Bubble: share of a step in which a rank does not compute, mean over ranks. Column "of these stages": '
    "bubble of GPipe with the measured compute times of S stages, if messages took no time: 1 - M b / "
    "(M - 1 + S b), with M microbatches and b = mean stage time / longest stage time; 1F1B's can be smaller. "
    "(S-1)/(M+S-1): the bubble of equal stages (Huang et al. 2019). The measured bubble also contains messages, "
    "sums of gradients and waiting. Activations: outputs of a stage's layers for all microbatches in flight, on "
    "the rank with most; vectors: parameters, gradients and optimizer state on the rank with most."
)


def _bubble_of(row: Row, balance: float | None) -> str:
    """Return the bubble of pipelines with this balance of stages, without messages."""
    record = row.scale.record
    return digits(bubble_share(record.stages or 1, record.microbatches or 1, balance) if balance else None)


PIPELINES: Final[tuple[Column[Row], ...]] = (
    METHOD,
    RANKS,
    stated(Record.stages),
    Column[Row]("microbatches", lambda row: str(row.scale.record.microbatches or 1)),
    median(Record.bubble_share, importance="answer"),
    Column("of these stages", lambda row: _bubble_of(row, row.scale.median(Record.load_balance))),
    Column("(S-1)/(M+S-1)", lambda row: _bubble_of(row, 1.0)),
    median(Record.load_balance, "mean/longest stage"),
    median(Record.activation_bytes_per_rank, importance="answer"),
    median(Record.memory_bytes_per_rank, "vectors"),
)


def _pipelines(methods: Sequence[Method]) -> list[Row]:
    return [row for row in rows(methods) if row.scale.record.stages]


def pipeline_answer(findings: Findings) -> Answer | None:
    """Return memory and idle time of 1F1B and GPipe with most stages and microbatches of each problem."""
    lines, shares, basis = list[str](), dict[str, list[float | None]](), list[Record]()
    for methods in findings.problems:
        schedules: dict[tuple[tuple[int, int], Key, int], dict[str, Scale]] = {}
        for scale in (row.scale for row in _pipelines(methods)):
            record, size = scale.record, (scale.record.stages or 1, scale.record.microbatches or 1)
            schedule = parts(str(record.training))[1].get("schedule", "gpipe")
            schedule = {"gpipe": "GPipe", "1f1b": "1F1B"}.get(schedule, schedule)
            key = (size, record.but(training="").configuration("training"), record.ranks)
            schedules.setdefault(key, {})[schedule] = scale
            shares.setdefault(schedule, []).append(scale.median(Record.bubble_share))
            basis += scale.records
        both = {key: scales for key, scales in schedules.items() if {"GPipe", "1F1B"} <= scales.keys()}
        for key in sorted(both, key=lambda key: key[0], reverse=True)[:1]:
            scales = [both[key][name] for name in ("1F1B", "GPipe")]
            sizes = [scale.record.activation_bytes_per_rank or 0 for scale in scales]
            begin = "The ranks of 1F1B"
            if all(sizes):
                memory = f"{100 * sizes[0] / sizes[1]:.0f} % of GPipe's memory for activations"
                begin = f"1F1B needs {memory}; its ranks"
            idle, most = (percent(scale.median(Record.bubble_share)) for scale in scales)
            as_long = "as long as GPipe's" if idle == most else f"GPipe's for {most}"
            words = [f"{key[0][0]} stages", f"{key[0][1]} microbatches"]
            where = findings.settings.where(scales[0].record, *words)
            lines.append(f"{begin} idle for {idle} of a step, {as_long} {where}.")
    lines += [f"With {name} ranks idle for {spread(some, percent)} of a step." for name, some in shares.items()]
    return Answer(lines[0], lines[1:], basis) if lines else None


PIPELINE: Final = Declaration(
    85,
    lambda findings: per_setting(findings, "Pipelines", PIPELINES, _pipelines, PIPELINE_NOTE),
    answer=pipeline_answer,
)

MEMORY_NOTE: Final = (
    "Memory: size of the vectors on the rank that has most. These are parameters, gradients, the state of "
    "optimizer and strategy, and copies of the parameters for evaluations during training. Memory / parameters: "
    "this size / size of the parameters. Consensus distance: root mean square over ranks of the distance between "
    "a rank's parameters and their average, at the last evaluation."
)


def _times_the_parameters(row: Row) -> str:
    size, parameters = row.scale.median(Record.memory_bytes_per_rank), row.scale.record.parameters
    item = 8 if row.scale.record.dtype == "float64" else 4  # below float32 parameters are kept in float32
    return digits(size / (parameters * item)) if size and parameters else NONE


MEMORY: Final = (
    METHOD,
    RANKS,
    median(Record.memory_bytes_per_rank),
    Column("memory / parameters", _times_the_parameters, importance="answer"),
    median(Record.consensus_distance),
)


def memory_page(findings: Findings) -> Section:
    """Return one table per problem; methods that are all alike have one row."""
    known = partial(largest_first, quantity=Record.memory_bytes_per_rank)
    section = per_setting(findings, "Memory and consensus", MEMORY, known, MEMORY_NOTE, "most memory first")
    tables = list[Table]()
    for table in section.tables:
        are_alike = len(table.rows) > 1 and len({row[2:] for row in table.rows}) == 1
        one_row = [(f"all {len(table.rows)}", NONE, *table.rows[0][2:])]
        tables.append(replace(table, rows=one_row).without_empty() if are_alike else table)
    return replace(section, tables=tables)


MEMORY_AND_CONSENSUS: Final = Declaration(90, memory_page, rows=EVIDENCE)

MAX_BARS: Final = 16
"""Bars of a chart, at most."""
PARTS: Final = ("compute", "input", "waiting", "transfer", "rest")
"""Parts of a bar; those that no bar has are left out."""
BREAKDOWN_NOTE: Final = (
    "Means over ranks; input is the time of the rank that waits longest for its images. Waiting: a message has "
    "not begun on another rank. Transfer: bytes move. Both count only while the rank does not compute, so that "
    "overlapped communication is in neither. Rest: remaining time of the step; if the trace has no messages, all "
    "communication and waiting."
)


def step_breakdown(findings: Findings) -> list[Bars]:
    """Return one chart per problem: one rank, and each method at its largest number of ranks."""
    made = []
    for methods in findings.problems:
        timed = [row for row in rows(methods) if row.step_seconds and row.scale.median(Record.compute_seconds)]
        largest = max((row.scale.record.ranks for row in timed), default=0)
        if largest <= 1:
            continue
        every = [row for row in timed if row.scale.record.ranks in {1, largest}]
        every.sort(key=lambda row: (row.scale.record.ranks, not row.no_communication, row.step_seconds))
        shown = every[:MAX_BARS]
        labels = [row.name + ", 1 rank" * (row.scale.record.ranks == 1) for row in shown]
        parts = {name: each for name, *each in zip(PARTS, *map(_split, shown), strict=True) if any(each)}
        setting = findings.settings.name(methods[0].record)
        title = ": ".join(filter(None, (f"Where a step's time goes on {largest} ranks", setting)))
        rest = f" The fastest {MAX_BARS} of {len(every)}." if len(every) > MAX_BARS else ""
        note = f"{findings.settings.further(methods[0].record)}{BREAKDOWN_NOTE}{rest}"
        made.append(Bars(title, labels, parts, Axis("step", seconds), note))
    return made


def _split(row: Row) -> tuple[float, ...]:
    """Return the lengths of :data:`PARTS` (s); together they are the step."""
    scale, left, lengths = row.scale, row.step_seconds or 0.0, []
    computed = (scale.median(Record.compute_seconds) or 0.0) * (scale.median(Record.load_balance) or 1.0)
    for length in (computed, scale.median(Record.waiting_seconds), scale.median(Record.transfer_seconds)):
        lengths.append(min(left, length or 0.0))
        left -= lengths[-1]
    compute, waiting, transfer = lengths
    images = min(compute, scale.median(Record.input_seconds) or 0.0)
    return compute - images, images, waiting, transfer, left


STEP: Final = Declaration(80, lambda _: Section("Time of a step"), figures=(step_breakdown,))

SHOWN_AGES: Final = 4
"""Staleness values with one column each: 0 to 3."""
STALENESS_NOTE: Final = (
    "Staleness of a gradient: number of updates of the parameters between the fetch by its worker and the moment "
    "when it is applied. Expected: mean if workers never wait and fetch after every push, (workers - 1) / "
    "(gradients per update). With overlap parameters are one step older: (2 workers - 1) / (gradients per "
    "update). Shares count the gradients that were applied in the measured steps; max is the maximum of the whole "
    "training. Discarded: share of the gradients that no update used."
)


def staleness_page(findings: Findings) -> Section:
    """Return one table per problem in which gradients were applied to newer parameters."""
    shares = group_by_key((_seed_key(record), stale.shares) for record, stale in findings.staleness)

    def at(row: Row, age: int) -> str:
        """Return the share of gradients of a staleness, or at least as many updates as columns, over launches."""
        launches = [
            each for key in dict.fromkeys(map(_seed_key, row.scale.records)) for each in shares.get(key, ())
        ]
        below = [
            sum(each[age] for each in launches if age < len(each)) / len(launches) for age in range(SHOWN_AGES)
        ]
        return percent(below[age] if age < SHOWN_AGES else max(0.0, 1 - sum(below)), 1)

    def share(age: int) -> Column[Row]:
        return Column(
            f"at {age}" + " or more" * (age == SHOWN_AGES), lambda row: at(row, age), importance="detail"
        )

    columns: list[Column[Row]] = [
        METHOD,
        RANKS,
        stated(Record.workers),
        median(Record.gradients_per_update),
        Column("discarded", lambda row: percent(row.scale.median(Record.discarded_share), 1)),
        median(Record.staleness_mean, importance="answer"),
        median(Record.staleness_expected, importance="answer"),
        Column[Row]("max", lambda row: f"{row.scale.bounds(Record.staleness_max)[1] or 0:.0f}"),
        *map(share, range(SHOWN_AGES + 1)),
    ]
    stale_rows = partial(largest_first, quantity=Record.staleness_mean)
    return per_setting(findings, "Staleness", columns, stale_rows, STALENESS_NOTE, "highest mean first")


def _seed_key(record: Record) -> Key:
    return (record.configuration(), record.ranks, record.seed)


STALENESS = Declaration(100, staleness_page, rows=EVIDENCE, name="staleness")
