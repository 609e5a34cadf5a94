"""A short report: first rows, one table for many settings, shared values in a line, and the place of the rest."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import read
from hpcdl.report.contents import short, summary
from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.tables import MAX_COLUMNS, Table
from hpcdl.report.formats.writers import plain
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings

DATA = Path(__file__).resolve().parents[2] / "reports" / "data"


def table(title, rows, ranks="4"):
    header = ("method", "ranks", "step", "near-linear")
    cells = [(f"m{n}", ranks, f"{n} s", "no") for n in range(rows)]
    return Table(title, header, cells, order="fastest first", answers=("step", "near-linear"))


def test_a_long_table_has_its_first_rows_and_says_how_many_there_are():
    (brief,) = Section("s", tables=[table("", 50)]).shortened(20, 8).tables
    assert [row[0] for row in brief.rows] == [f"m{n}" for n in range(20)]
    assert brief.caption == "The same in all 50 rows: ranks 4, near-linear no."
    assert brief.left_out == "20 of 50 rows, fastest first; all are in report.html."
    assert brief.header == ("method", "step")
    brief = replace(table("", 50), ascending=True).first(20)
    assert [row[0] for row in brief.rows] == [f"m{n}" for n in range(30, 50)]
    assert brief.left_out == "The last 20 of 50 rows, fastest first; all are in report.html."


def test_many_settings_share_a_table():
    tables = [table(f"{name}: measured, 5 epochs", 10, ranks) for name, ranks in zip("ABC", "248", strict=True)]
    (brief,) = Section("s", tables=tables, per="setting").shortened(24, 8).tables
    assert brief.header == ("setting", "method", "ranks", "step")
    assert [row[:3] for row in brief.rows[7:9]] == [("A", "m7", "2"), ("B", "m0", "4")]
    assert brief.left_out == "24 of 30 rows, at most 8 of each setting, fastest first; all are in report.html."


def test_points_tables_and_lines_of_a_suite_are_counted():
    points, suite = [f"p{n}" for n in range(10)], "[suite]\n" * 50
    tables = [table(str(n), 2) for n in range(6)]
    brief = Section("s", points=points, tables=tables, verbatim=suite).shortened(40, 8)
    more = ["2 more in report.html", "2 more tables in report.html", "50 lines of the suite in report.html"]
    assert brief.points[7:] == ["p7", *more]
    assert not brief.verbatim


@pytest.mark.slow
def test_markdown_is_short_and_other_formats_have_every_case(hand, whole):
    for ranks in (1, 2):
        for number in range(25):
            compression = f"top_k(density=0.{number:02})"
            hand.train([[20.0 + number] * 8] * ranks, aggregation="ring", compression=compression)
    run = hand.read(suite_text="[suite]\nname = 's'\n" + "# a remark\n" * 60)
    page = render([run], "md")
    assert len(page.splitlines()) < 150
    assert "rows, most ranks first, then most images/s; all are in report.html." in page
    assert "lines of the suite in report.html" in page
    assert len(render([run], "csv").splitlines()) == 51
    assert whole(run).count("density=0.24") == 5  # both numbers of ranks, memory, and two contrasts


@pytest.mark.parametrize("name", ["near-linear", "published"])
def test_tables_of_kept_reports_have_nine_columns_and_a_terminal_those_that_answer(name):
    (run,) = findings([read(DATA / f"{name}.json.xz")])
    tables = [table for section in short(run).sections for table in section.tables]
    assert all(len({*table.header}) == len(table.header) <= MAX_COLUMNS for table in tables)
    (shown,) = (section for section in summary(run).sections if section.tables)
    text = plain([Document("", [shown])])
    assert max(map(len, text.splitlines())) <= 80
    dropped = " ".join(text.split()).partition("More columns on a wider terminal: ")[2].removesuffix(".")
    assert shown.tables[0].answers
    assert not {*dropped.split(", ")} & {*shown.tables[0].answers}
