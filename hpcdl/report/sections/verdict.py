"""Verdict: the answer to the suite's question, and failures; and the warnings."""

from typing import Final

from hpcdl.report.formats.cells import plural
from hpcdl.report.formats.document import Section
from hpcdl.report.run import contents
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.warnings import diverged, failed_processes, failures, unfinished, without_result

WARNINGS: Final = Declaration(
    5,
    lambda findings: Section("Warnings", points=findings.warnings, folded=True),
    terminal=("paragraphs", "points", "tables"),
)


def verdict_page(findings: Findings) -> Section:
    """Return the answer to the suite's question, failures, and details of the answer.

    A suite that names no answer has those of the other sections, too.
    """
    first, others = (list(answers.values()) for answers in contents.answers(findings))
    points = [f"FAILED {failure}" for failure in failures(findings.records)] + without_result(findings.run)
    points += [answer.headline for answer in others if not findings.answered_by]
    points += [*(line for answer in first for line in answer.details), *failed_processes(findings.run)]
    warned = f"{plural(len(findings.warnings), 'warning')}." if findings.warnings else "No warnings."
    headline = " ".join(answer.headline for answer in first)
    return Section("Verdict", [*filter(None, [headline]), f"{_state(findings)} {warned}"], points)


def _state(findings: Findings) -> str:
    records, broken = findings.records, len(unfinished(findings.run))
    failed, lost, states = len(failures(records)) + broken, len(diverged(records)), []
    if failed:
        states.append(f"FAILED: {plural(failed, 'case')} of {len(records) + broken}.")
    elif not (findings.run.complete and records):
        states.append(f"INCOMPLETE: {plural(len(records), 'case')} finished, others are missing.")
    if lost:
        states.append(f"DIVERGED: {plural(lost, 'case')} of {len(records)}.")
    return " ".join(states) or "Nothing failed."


VERDICT: Final = Declaration(0, verdict_page, terminal=("paragraphs", "points", "tables"))
