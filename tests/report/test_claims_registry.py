"""Files of claims have the rows, limits, numbers, kinds and reports of the registry, and nothing else."""

import re
from pathlib import Path

import pytest

from hpcdl.report.claims import registry
from hpcdl.report.run.claims import Kind, sources
from hpcdl.suite import PAPERS

ROOT = Path(__file__).parents[2]
TEXT = (PAPERS / "registry.md").read_text(encoding="utf-8")
ROWS = registry()
CLAIMS = {claim.id: claim for source in sources() for claim in source.claims}
PARTS = {part.id: part for claim in CLAIMS.values() for part in claim.parts}
ONE_VERDICT = {"E3"}
"""Its numbers a and b are decided together."""


def letters(row):
    _, test, limit, *_ = ROWS[row]
    found = {letter for cell in (test, limit) for letter in re.findall(r"(?:^|[:;,)] )([a-d]) ", cell)}
    return sorted(found) if row not in ONE_VERDICT else []


def limits(row):
    """Return the limit of each part, by letter; of all without a letter."""
    texts = {
        "F4": "\N{LESS-THAN OR EQUAL TO} 0.1667",
        "E3": "-0.5 to 0.5",
        "E10": "a >= 100 and >= -1; b, c >= 1000 and >= -2",
        "E11": ">= 1000 and >= -2",
    }
    text = texts.get(row, ROWS[row][2]).replace(">=", "\N{GREATER-THAN OR EQUAL TO}")
    pieces = re.sub(r" \([^)]*\)", "", re.sub(r"(?<=\d)-(?=\d)", " to ", text)).split("; ")
    found = [re.fullmatch(r"(?:([a-d](?:, [a-d])*) )?(?:both |every )?(.+)", piece) for piece in pieces]
    every = letters(row) or [""]
    return {letter: each[2] for each in found for letter in (each[1] or ", ".join(every)).split(", ")}


def test_it_is_the_registry_of_this_project():
    """If the file that nobody here edits is beside this tree."""
    kept = ROOT.parent / "shared" / "CLAIMS.md"
    if not kept.exists():
        pytest.skip("the original is not here")
    assert kept.read_text(encoding="utf-8") == TEXT


def test_every_row_and_part_is_there_and_no_other():
    assert list(CLAIMS) == list(ROWS)
    for row, claim in CLAIMS.items():
        assert [part.id for part in claim.parts] == [f"{row}{letter}" for letter in letters(row) or [""]]
    assert len(PARTS) == 80


def test_limits_and_kinds_are_the_registrys():
    kinds = {"C": Kind.COMPUTED, "M": Kind.MESSAGES, "V": Kind.TRAINED, "O": Kind.OTHERS, "-": Kind.TRAINED}
    for row in ROWS:
        for letter, text in limits(row).items():
            part = PARTS[f"{row}{letter}"]
            assert not part.clauses or {clause.limit for clause in part.clauses} == {*text.split(" and ")}, part.id
        assert {part.kind for part in CLAIMS[row].parts} == {
            kinds[one] for one in re.findall("[CMVO-]", ROWS[row][3])
        }


def test_numbers_of_seeds_and_launches_are_the_registrys():
    stated = {
        row: [int(n) for n in re.findall(r"(\d+) (?:fresh )?seeds", cells[1])] for row, cells in ROWS.items()
    }
    assert {row: n for row, n in stated.items() if n} == {"D3": [12], "E3": [4], "E11": [9], "E12": [60]}
    other = {"D3a": [12], "E3": [4], "E11b": [9], "E12a": [60], "E12b": [60], "L5": [20]}
    assert {part.id: part.n for part in PARTS.values() if tuple(part.n) != part.kind.looks} == other
    assert (Kind.TRAINED.looks, Kind.COMPUTED.looks, Kind.MESSAGES.looks) == ((5, 10), (5,), (5,))
    assert "seeds 1 to 5; if open, 6 to 10" in TEXT


def test_each_part_is_on_the_page_that_the_registry_names():
    table = TEXT.partition("| report | question | claims | figure |")[2]
    pages = {}
    for cells in re.findall(r"^\| ([\w-]+) \|[^|]*\| ([^|]*) \|", table, re.MULTILINE):
        for row, some in re.findall(r"\b([FDLEO]\d+)([a-d]*)\b", cells[1]):
            for letter in some or letters(row) or [""]:
                pages[f"{row}{letter}"] = cells[0]
    assert {part.id: part.report for part in PARTS.values()} == pages


def test_a_limit_of_ours_says_so():
    """Of 0 and 1 the sentence itself is the reason."""
    for part in PARTS.values():
        numbers = {limit for clause in part.clauses for limit in (clause.above, clause.below) if limit is not None}
        inclusive = any(limit is not None for clause in part.clauses for limit in (clause.least, clause.most))
        assert part.because or not (inclusive or numbers - {0, 1}), part.id
