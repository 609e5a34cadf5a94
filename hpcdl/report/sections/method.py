"""Statistics in words, and the command and the suite that repeat the run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from hpcdl.analysis.run.cores import UNKNOWN
from hpcdl.analysis.run.record_fields import keeps_step
from hpcdl.report.formats.cells import plural
from hpcdl.report.formats.document import Section
from hpcdl.report.run.contents import Declaration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.run.findings import Findings

METHOD = (
    "A step, or one repetition of a collective, takes as long as its slowest rank. Times are medians over "
    "steps after warm-up, with a distribution-free 95 % interval from order statistics; below 6 values there is "
    "none. With several launches the launch is the unit: medians over launches of their medians, with Student's t "
    "interval of the logarithms, from 6 launches on of order statistics. Efficiencies are ratios of medians, with "
    "Welch's interval of the logarithms over launches. Verdicts (near-linear, fastest, tied) are Welch's tests of "
    "these logarithms, adjusted for their number (Benjamini & Hochberg): they need an adjusted p below 0.05. One "
    "launch gives no verdict: it is inconclusive, and its intervals of times are over its steps, those of "
    "differences by a seeded bootstrap. A case whose launches are all disturbed has no verdict and no place in a "
    "ranking; else the undisturbed ones count. If the hypervisor took time, the interval of a ratio spans the "
    "ratio as measured and corrected for it, and a verdict holds for both."
)
SCALING = (
    "The base of efficiency and speedup are the cases on one rank, taken together: one rank "
    "exchanges nothing, so that every aggregation is the same program there. A different compression, optimizer "
    "or strategy is not: the base has the same where there is such, else it trains synchronously, uncompressed. "
    "Their step time is the median of their medians, and efficiency 1 is theirs by definition. Where there is "
    "no case on one rank the base is the method's own smallest scale. Near-linear: the test puts the efficiency "
    "above 0.90; not near-linear: below; inconclusive: neither. Exposed "
    "communication is the step time less that of the case without communication (aggregation none) on as many "
    "ranks; on one rank it is 0 by definition."
)

THROUGHPUT = (
    "If ranks keep no common step, or steps are not alike, the step is the mean time in which all ranks "
    "together consume a global batch, from when the last worker has passed its warm-up steps until the first has "
    "ended, without evaluation on the test set; its interval is Student's over windows of equally many "
    "images."
)


def page(found: Findings) -> Section:
    """Return the statistics in words, warm-up counts, command and suite."""
    run, records = found.run, found.records
    kinds: dict[tuple[str, int], list[int]] = {}
    for record in records:
        if record.get("network"):  # simulated: once, exactly
            continue
        key = (str(record.get("kind") or "train"), record["warmup_steps"])
        kinds.setdefault(key, []).append(record["measured_steps"])
    counts = [
        f"{kind}: {plural(warmup, 'warm-up step')} left out, {_range(steps)} measured per case."
        for (kind, warmup), steps in kinds.items()
    ]
    paragraphs = [METHOD]
    paragraphs += [THROUGHPUT] if not all(map(keeps_step, records)) else []
    paragraphs += [SCALING] if any(record.get("base_ranks") for record in records) else []
    points = [*counts, f"Command: `{_command(run.environment.get('command'))}`"]
    return Section("Method and how to reproduce", paragraphs, points, verbatim=run.suite)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return plural(low, "step") if low == high else f"{low} to {high} steps"


def _command(given: Any) -> str:
    """Return the command line; the program is called by its name, wherever it was installed."""
    if not isinstance(given, list) or not given:
        return str(given or UNKNOWN)
    program, *arguments = map(str, given)
    if program.endswith(("hpcdl/__main__.py", "bin/hpcdl")):
        program = "hpcdl"
    return shlex.join([program, *arguments])


SECTION = Declaration(920, page)
