"""Earlier verdicts on claims are kept as a table, which the history of the tree gives again."""

import csv
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from hpcdl.report.claims import document
from hpcdl.report.run.claims import sources
from hpcdl.suite import PAPERS

ROOT = Path(__file__).parents[2]
TABLE = PAPERS / "claims_earlier.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


def test_rows_are_verdicts_on_claims_of_the_registry():
    assert all(re.fullmatch("[FDLEO][1-9][0-9]?[a-d]?", row["id"]) for row in ROWS)
    assert {row["verdict"].removesuffix(", then model") for row in ROWS} == {"yes", "no", "open", "model", ""}
    assert {row["changed"] for row in ROWS if not row["numbers"]} == {"removed"}  # clauses that no page shows


REFUTED = [
    ("L9a", "above 2.25; below 2.75", "2.83 times", "claim, limit, expected, verdict"),
    ("E11b", "above -0.02", "-33.3 points (-42.0 to -24.7); -29.0 points", "removed"),
    ("E8a", "below 1", "103.8 %", "removed"),
    ("D5a", "above 1", "0.970 times", "removed"),
    ("F10b", "above -0.02", "-13.5 points", "removed"),
    ("L6b", "above 0.45; below 0.55", "76.8 %", "verdict"),
]


def test_refuted_claims_are_in_the_table_and_on_the_page():
    page = document(sources(), defaultdict(list))
    (section,) = [section for section in page.sections if section.title == "Earlier verdicts"]
    for row, limit, number, changed in REFUTED:
        refuted = [one for one in ROWS if one["id"] == row and one["verdict"].startswith("no")]
        assert any(
            (one["limit"], one["changed"]) == (limit, changed) and number in one["numbers"] for one in refuted
        )
        points = [point for point in section.points if point.startswith(f"{row},") and number in point]
        assert any(f"Changed later: {changed}." in point for point in points)
    rows = [row for section in page.sections for table in section.tables for row in table.rows]
    (ring,) = [row for row in rows if row[0].startswith("L9a: ")]  # a part has them beside it, too
    assert "no 2.83 times" in ring[-1]
    assert ring[-1].endswith("; registry: a no 2.83; reworded: yes")


def test_the_history_gives_the_table_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "reports" / "oracles"))
    history = pytest.importorskip("claims_history")
    if subprocess.run(["git", "cat-file", "-e", ROWS[0]["first"]], cwd=ROOT, check=False).returncode:
        pytest.skip("this checkout has no history")
    monkeypatch.setattr(history, "TABLE", tmp_path / TABLE.name)
    history.main()
    assert history.TABLE.read_bytes() == TABLE.read_bytes()
