"""A short report: first rows, one table for many settings, shared values in a line, and the place of the rest."""

import pytest

from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Table
from hpcdl.report.render import render


def table(title, rows, ranks="4"):
    header = ("method", "ranks", "step", "near-linear")
    cells = [(f"m{n}", ranks, f"{n} s", "no") for n in range(rows)]
    return Table(title, header, cells, order="fastest first", answers=("step", "near-linear"))


def test_a_long_table_has_its_first_rows_and_says_how_many_there_are():
    (short,) = Section("s", tables=[table("", 50)]).shortened(20, 8).tables
    assert [row[0] for row in short.rows] == [f"m{n}" for n in range(20)]
    assert short.caption == "All 50 rows: ranks 4, near-linear no."
    assert short.left_out == "20 of 50 rows, fastest first; all are in report.html."
    assert short.header == ("method", "step")


def test_many_settings_share_a_table():
    tables = [
        table(f"{name}: measured, 5 epochs", 10, ranks) for name, ranks in (("A", "2"), ("B", "4"), ("C", "8"))
    ]
    (short,) = Section("s", tables=tables, per="setting").shortened(24, 8).tables
    assert short.header == ("setting", "method", "ranks", "step")
    assert [row[:3] for row in short.rows[7:9]] == [("A", "m7", "2"), ("B", "m0", "4")]
    assert short.left_out == "24 of 30 rows, at most 8 of each setting, fastest first; all are in report.html."


def test_points_tables_and_lines_of_a_suite_are_counted():
    points, suite = [f"p{n}" for n in range(10)], "[suite]\n" * 50
    short = Section("s", points=points, tables=[table(str(n), 2) for n in range(6)], verbatim=suite).shortened(
        40, 8
    )
    assert short.points[7:] == [
        *("p7", "2 more in report.html", "2 more tables in report.html", "50 lines of the suite in report.html"),
    ]
    assert not short.verbatim


@pytest.mark.slow
def test_markdown_is_short_and_other_formats_have_every_case(hand, whole):
    for ranks in (1, 2):
        for number in range(25):
            hand.train(
                [[20.0 + number] * 8] * ranks, aggregation="ring", compression=f"top_k(density=0.{number:02})"
            )
    run = hand.read(suite_text="[suite]\nname = 's'\n" + "# a remark\n" * 60)
    page = render([run], "md")
    assert len(page.splitlines()) < 150
    assert "rows, most ranks first, then most images/s; all are in report.html." in page
    assert "lines of the suite in report.html" in page
    assert len(render([run], "csv").splitlines()) == 51
    assert whole(run).count("density=0.24") == 5  # both numbers of ranks, memory, and two contrasts
