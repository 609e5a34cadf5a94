"""What a run showed, in a few lines: failures first, then who scales, then who is fastest."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from hpcdl.analysis.fields import METHOD
from hpcdl.report import collectives
from hpcdl.report.document import Section, Table
from hpcdl.report.names import Names, said
from hpcdl.report.quantities import NONE, digits, interval, plural
from hpcdl.report.seeds import NEAR_LINEAR, Method, Scale
from hpcdl.report.warnings import deaths, failures
from hpcdl.report.winners import CROWDED, answer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpcdl.analysis.best import Winner
    from hpcdl.analysis.scaling import Record
    from hpcdl.report.settings import Settings
    from hpcdl.trace.run import Run


def verdict(
    run: Run,
    records: Sequence[Record],
    groups: Sequence[Sequence[Method]],
    settings: Settings,
    best: Sequence[Winner],
    doubts: Sequence[str],
    crowded: Collection[int] = (),
) -> Section:
    """The first section of every report; ``crowded``: numbers of ranks that shared cores."""
    failed = failures(records)
    if failed:
        word = f"FAILED: {plural(len(failed), 'case')} of {len(records)}."
    elif run.complete and any(record["measured_steps"] for record in records):
        word = "Nothing failed."
    else:
        word = f"INCOMPLETE: {plural(len(records), 'case')} finished, others are missing."
    points = [f"FAILED {one}" for one in failed] + deaths(run)
    judged = {
        settings.letter(methods[0].scales[0].records[0]): [
            one for one in methods if one.is_compared and not one.is_ceiling
        ]
        for methods in groups
    }
    points += [line for winner in best if (line := answer(winner, settings, crowded))]
    for letter, methods in judged.items():
        points += [f"{letter}: {line}" if letter else line for line in _standings(methods)]
    points += collectives.fastest(records, crowded)
    warned = f"{plural(len(doubts), 'warning')}." if doubts else "No warnings."
    question = _question(run.suite)
    paragraphs = [
        f"Question: {question}" if question else "",
        " ".join(filter(None, (word, _count(list(filter(None, judged.values())), crowded), warned))),
        f"Setting: {settings.common}." if settings.common else "",
    ]
    own = list(settings.own.values())
    tables = [Table("", ("setting", "differs in"), own, 2)] if own else []
    tables += _methods([record for record in records if (record.get("kind") or "train") == "train"])
    return Section("Verdict", list(filter(None, paragraphs)), points, tables)


def _methods(trained: Sequence[Record]) -> list[Table]:
    """What each method is, where several strategies are compared; what all share is left out."""
    names = Names(trained)
    shown = dict.fromkeys((names(record), *(said(record, name) or NONE for name in METHOD)) for record in trained)
    if len({record.get("training") for record in trained}) < 2:
        return []
    header = ("method", *(name.replace("_", " ") for name in METHOD))
    alike = [name for name, cells in zip(header, zip(*shown, strict=True), strict=True) if len(set(cells)) == 1]
    return [Table("", header, list(shown), len(header)).without(*alike)]


def _question(suite: str) -> str:
    try:
        return str(tomllib.loads(suite).get("suite", {}).get("question", ""))
    except tomllib.TOMLDecodeError:  # a report is no place to complain about a suite that has run
        return ""


def _count(judged: Sequence[Sequence[Method]], crowded: Collection[int]) -> str:
    """How many hold to their largest scale, in all settings together, and where that says nothing of scaling."""
    if not judged:
        return ""
    ends = [one.scales[-1] for methods in judged for one in methods]
    near = sum(scale.near_linear is True for scale in ends)
    scales = {scale["ranks"] for scale in ends}
    where = f"{ends[0]['ranks']} ranks" if len(scales) == 1 else "their largest scale"
    are = (
        "method is" if len(ends) == 1 else "methods are" if len(judged) == 1 else "pairs of method and setting are"
    )
    open_ = sum(scale.near_linear is None for scale in ends)
    bound = f"(lower bound of efficiency >= {NEAR_LINEAR:.2f})"
    rest = f", {open_} {'is' if open_ == 1 else 'are'} undecided" if open_ else ""
    shared = ", ".join(map(str, sorted({scale["ranks"] for scale in ends if not scale["network"]} & set(crowded))))
    doubt = f" {CROWDED}: at {shared} ranks they share cores, and this is no measure of scaling." if shared else ""
    return f"{near} of {len(ends)} {are} near-linear at {where} {bound}{rest}.{doubt}"


def _standings(methods: Sequence[Method]) -> list[str]:
    """One line for all methods that stand alike, with the efficiency that decided; the best line first."""
    lines: dict[tuple[int, int, str], list[str]] = {}
    for one in methods:
        order, phrase, told = _standing([scale for scale in one.scales if not scale.is_base])
        lines.setdefault((*order, phrase), []).append(f"{one.name} ({_efficiency(told)})")
    return [f"{phrase}: {', '.join(names)}." for (_, _, phrase), names in sorted(lines.items())]


def _standing(beyond: Sequence[Scale]) -> tuple[tuple[int, int], str, Scale]:
    """Where it comes in the list, in words, and the scale that decided."""
    held = next((number for number, scale in enumerate(beyond) if not scale.near_linear), len(beyond))
    reached = beyond[held - 1]["ranks"] if held else 0
    if held == len(beyond):
        return (-reached, 0), f"near-linear at {reached} ranks", beyond[-1]
    told = beyond[held]
    until = f"near-linear up to {reached} ranks, " if held else ""
    here = f"{told['ranks']} ranks"
    if told.near_linear is False:
        where = f"at {here}" if told is beyond[-1] else f"from {here} on"
        return (-reached, 2), f"{until}not {'' if held else 'near-linear '}{where}", told
    inside = told.low("efficiency_low") is not None
    why = f"{NEAR_LINEAR:.2f} is inside the interval" if inside else "too few steps for an interval"
    return (-reached, 1), f"{until}undecided at {here}, {why}", told


def _efficiency(scale: Scale) -> str:
    bounds = interval(scale.low("efficiency_low"), scale.high("efficiency_high"))
    return digits(scale.median("efficiency")) + (f", {bounds}" if bounds != "-" else "")
