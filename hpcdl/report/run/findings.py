"""Numbers from one run: each reduction is computed once, at its first use, and every section draws from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeVar

from hpcdl.analysis.network import links, nodes, waiting
from hpcdl.analysis.network.links import Links
from hpcdl.analysis.network.nodes import Nodes
from hpcdl.analysis.network.waiting import Waiting
from hpcdl.analysis.run import deciding, disturbance
from hpcdl.analysis.run.deciding import Decision, Field
from hpcdl.analysis.run.launches import Launch, Staleness, launches
from hpcdl.analysis.run.pooling import distinct
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import records
from hpcdl.fabric.network import Network
from hpcdl.prediction.predict import Prediction, document, expect, kept, predict_run
from hpcdl.report.run import link_counters
from hpcdl.report.run.grouping import Method, Settings, problems, settings
from hpcdl.report.run.names import run_names
from hpcdl.report.run.warnings import warnings
from hpcdl.suite import head, papers
from hpcdl.trace.run import Run

T = TypeVar("T")


@dataclass(frozen=True)
class Reference:
    """Network and rate of a host's link (bytes/s) with which measured times are compared, if they are stated."""

    network: Network | None = None
    link: float = 0.0
    predict: bool = False
    """True: fit a network to a run that keeps no predictions."""


NOTHING_STATED: Final = Reference()


@dataclass(frozen=True)
class Findings:
    """Findings in one run."""

    run: Run
    name: str
    reference: Reference = NOTHING_STATED

    @cached_property
    def _made(self) -> dict[object, Any]:
        return {}

    @cached_property
    def broken(self) -> dict[str, str]:
        """Error of each section, answer and figure that could not be made, by its name."""
        return {}

    def once(self, make: Callable[[Findings], T]) -> T:
        """Return ``make`` of these findings, which is called once."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made

    @cached_property
    def launches(self) -> list[Launch]:
        """Each launch of each case, reduced over its ranks."""
        pairs = zip(launches(self.run), self.waiting, strict=True)
        return [replace(launch, **waits.columns) if waits else launch for launch, waits in pairs]

    @cached_property
    def waiting(self) -> list[Waiting | None]:
        """Waiting and transfer of each launch of each case; None where the trace does not show them."""
        return [waiting.of_case(self.run, index) for index in range(len(self.run.described))]

    @cached_property
    def records(self) -> list[Record]:
        """One record per case and seed, with what is expected of it. Raises AmbiguousCaseError."""
        rows = disturbance.marked(self.run, records(self.launches))
        linked = [row for row in rows if row.busbw_bytes_per_second and row.nodes != 1 and not row.network]
        link = self.reference.link or link_counters.link_rate(self.run.environment, linked)
        for record in linked:
            record.link_bytes_per_second = link or None
        if self.reference.network is not None:
            expect(self.reference.network, rows)
        return rows

    @property
    def link(self) -> float:
        """Rate of a host's link (bytes/s); 0 if it is unknown, or no case has a bus bandwidth between hosts."""
        return max((record.link_bytes_per_second or 0.0 for record in self.records), default=0.0)

    @cached_property
    def problems(self) -> list[list[Method]]:
        """Training records by problem, then by method, then by ranks."""
        return problems(self.predicted.records if self.predicted else self.records)

    @cached_property
    def settings(self) -> Settings:
        """Settings that the problems share, and those in which they differ."""
        return settings(self.problems)

    @cached_property
    def warnings(self) -> list[str]:
        """Doubts about the numbers, worst first."""
        options = (
            ("--network", self.reference.network, Record.expected_seconds, "whose algorithm is known"),
            ("--link", self.reference.link, Record.link_bytes_per_second, "between hosts"),
        )
        unused = [
            f"{option} is not used: no case is a measured collective or exchange {which}."
            for option, stated, quantity, which in options
            if stated and not any(map(quantity.of, self.records))
        ]
        return [*warnings(self.run, self.records), *unused]

    @cached_property
    def usable_cores(self) -> float | None:
        """Cores of the smallest node that its ranks may use; None if unknown."""
        return disturbance.usable_cores(self.run.environment)

    @cached_property
    def fields(self) -> list[Field]:
        """Training methods that may be compared with each other."""
        return deciding.fields_of(self.launches)

    @cached_property
    def decisions(self) -> list[Decision]:
        """Methods by their time to the target, in each configuration."""
        return deciding.decisions(self.fields)

    @cached_property
    def staleness(self) -> list[tuple[Record, Staleness]]:
        """Case and staleness of each launch that applied gradients of other ranks."""
        return [(launch.record, launch.staleness) for launch in self.launches if launch.staleness]

    @cached_property
    def predicted(self) -> Prediction | None:
        """Network fitted to the measured times, and its predictions; None if the run keeps none, or too little.

        They are made when a run ends, or if the reference asks for them.
        """
        known = kept(self.run, self.records)
        return predict_run(self.run, self.records) if known is None and self.reference.predict else known

    @cached_property
    def links(self) -> list[Links]:
        """Exchanges between all pairs of ranks, or across the middle, launches together."""
        return nodes.over_launches(links.links(self.run))

    @cached_property
    def nodes(self) -> list[Nodes]:
        """Work of each host by itself, launches together."""
        return nodes.over_launches(nodes.nodes(self.run))

    @property
    def question(self) -> str:
        """The suite's question; empty if it has none."""
        return str(head(self.run.suite).get("question", ""))

    @property
    def answered_by(self) -> list[str]:
        """Sections that answer the suite's question, one for each part of it; empty if the suite names none."""
        suite = head(self.run.suite)
        named = suite.get("answer") or []
        compared = ["contrast"] if "compare" in suite else []
        return [*compared, *map(str, named if isinstance(named, list) else [named])]

    @cached_property
    def papers(self) -> list[str]:
        """Papers whose figures the suite repeats."""
        return papers(self.run.suite)


def findings(runs: Sequence[Run], reference: Reference = NOTHING_STATED) -> list[Findings]:
    """Return the findings in each run; copies of a run are left out, and named by the first."""
    runs = distinct(runs) if len(runs) > 1 else runs
    names = run_names([run.path for run in runs])
    return [Findings(run, name, reference) for run, name in zip(runs, names, strict=True)]


def with_waiting(run: Run) -> Run:
    """Return the run whose cases state waiting and transfer, which records without events do not show."""
    pairs = zip(run.recorded, Findings(run, run.path.name).waiting, strict=True)
    recorded = [
        replace(case, fields={**case.fields, **waits.columns}, identity=case.digest()) if waits else case
        for case, waits in pairs
    ]
    return replace(run, recorded=recorded)


def with_predictions(run: Run) -> Run:
    """Return the run with predictions of its measured times, if they are enough to fit a network."""
    predicted = Findings(run, run.path.name, Reference(predict=True)).predicted
    return run if predicted is None else replace(run, predictions=document(run, predicted))
