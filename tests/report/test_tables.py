"""The one rule of all tables, held on the run of each report and on a run with content for every section."""

import html as web
import re
import tomllib
from pathlib import Path

import pytest

from hpcdl.analysis.run.pooling import read_pooled
from hpcdl.report.contents import document, short, summary
from hpcdl.report.formats import html
from hpcdl.report.formats.tables import Table
from hpcdl.report.formats.writers import latex_table, plain
from hpcdl.report.run.findings import findings

from .conftest import on_terminal

REPORTS = Path(__file__).parents[2] / "reports"
PARTS = {one["name"] for one in tomllib.loads((REPORTS / "reports.toml").read_text())["report"] if "of" in one}
"""Of other reports."""
KEPT = sorted({path.name.partition(".")[0] for path in (REPORTS / "data").glob("*.json.xz")} - PARTS)
UNIT = r"(?:%|[num]?s|min|h|(?:[kMGT]i?)?B(?:/s)?|[kMG]?bit(?:/s)?)(?![\w/])"


@pytest.fixture(scope="module", params=[*KEPT, "illustrated"])
def found(request):
    if request.param == "illustrated":
        return findings([request.getfixturevalue("illustrated_run")])[0]
    return findings([read_pooled([REPORTS / f"data/{request.param}.json.xz"])])[0]


def tables(found):
    pages = (document(found), short(found), summary(found))
    return [table for page in pages for section in page.sections for table in section.tables]


def parts(text):
    """Return the parts of words that a line may end with."""
    return {part.rstrip(",.:") for part in re.split(r"\s+|(?<=[-_,(=/])", text)}


def test_names_stay_apart_and_no_column_says_the_same_in_all_rows(found):
    for table in tables(found):
        shown = table.presented()
        assert shown == shown.presented()
        names = ({row[: one.left] for row in one.rows} for one in (table, shown))
        assert len(next(names)) == len(next(names)), shown
        words, numbers = shown.header[: shown.left], shown.header[shown.left :]
        for name, *cells in zip(shown.header, *shown.rows, strict=True):
            assert set(cells) - {"-", ""}, (shown.title, name)
            assert len(shown.rows) == 1 or len({*cells}) > 1 or (name,) in (words, numbers), (shown.title, name)
            assert "95 %" not in name or name.endswith(("(95 %)", "within 95 %")), name


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_whole_words_within_its_width(found, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for page in (summary(found), document(found)):
        text = plain([page])
        assert max(map(len, text.splitlines())) <= columns
        assert not re.findall(rf"\d\n *{UNIT}(?!:)", text)  # "B:" is a setting
        monkeypatch.setenv("COLUMNS", "9999")
        whole = plain([page])
        monkeypatch.setenv("COLUMNS", str(columns))
        assert not parts(text) - parts(whole) - parts("More columns on a wider terminal")


def test_latex_to_input_has_seven_columns_and_no_heading(found):
    for table in tables(found):
        text = latex_table(table)
        assert "\\paragraph" not in text
        head = text.partition("\\toprule")[2].partition("\\midrule")[0]
        assert len(re.findall(r"(?<!\\)&", head)) < 7, head


def test_numbers_of_a_page_stay_with_their_units(found):
    page = re.sub(r"(?s)<(pre|style|svg)\b.*?</\1>", "", html.written([document(found)]))
    assert "&nbsp;" in page
    for text in re.findall(r">([^<]+)<", page):
        assert not re.search(rf"\d {UNIT}", web.unescape(text)), text


def test_intervals_reasons_and_parts_of_names_stand_once():
    names = ("train-lenet5-digits(shape=[8, 8])-ring-p2-b64", "train-lenet5-digits(shape=[8, 8])-server-p2-b64")
    rows = [(name, "2", f"{n} ms", f"{n}.1 to {n}.9 ms", "open: too few", "-") for n, name in enumerate(names)]
    rows.append(("train-lenet5-digits(shape=[8, 8])-tree-p4-b64", "2", "3 ms", "-", "yes", "-"))
    header = ("case", "seeds", "step", "95 %", "verdict", "empty")
    table = Table("", header, rows, answers=("step", "95 %", "verdict")).presented()
    assert table.header == ("case", "step (95 %)", "verdict")
    assert table.rows == [
        ("ring-p2", "0 ms (0.1 to 0.9 ms)", "open"),
        ("server-p2", "1 ms (1.1 to 1.9 ms)", "open"),
        ("tree-p4", "3 ms", "yes"),
    ]
    assert table.caption == "The same in all 3 rows: seeds 2. case: train-lenet5-digits(shape=[8, 8])-*-b64."
    assert table.left_out == "open: too few."
    assert table.key == "step (95 %)"


def test_no_name_is_shortened_to_nothing_and_words_that_begin_alike_are_no_shared_part():
    rows = [("exchange-fabric-ring", "1"), ("exchange-fabric-ring-p2", "2"), ("exchange-fabric-ring-p2-p2", "3")]
    table = Table("", ("case", "n"), rows).presented()
    assert [name for name, _ in table.rows] == ["ring", "ring-p2", "ring-p2-p2"]
    assert table.presented() == table
    rows = [("parameter averaging", "1"), ("parameter server", "2")]
    assert Table("", ("method", "n"), rows).presented().rows == rows


def test_names_break_between_their_parts(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [(f"sharded_parameter_server(segment_bytes={n})", "0.951 (0.931 to 0.980)", "12.3 ms") for n in (1, 2)]
    table = Table("", ("name", "efficiency (95 %)", "step"), rows)
    text = on_terminal(table)
    around = "d S The same in both rows name efficiency (95 %) step"
    assert max(map(len, text.splitlines())) <= 40
    assert not parts(text) - parts(" ".join(map(" ".join, [*rows, (around,)]))) - {""}


def test_a_narrow_terminal_leaves_out_an_interval_before_its_value(monkeypatch):
    rows = [(f"m{n}", f"{n}.00 ms", f"{n}.10 to {n}.90 ms", f"0.9{n}", f"0.8{n} to 0.9{n}") for n in (1, 2)]
    table = Table("", ("method", "step", "95 %", "efficiency", "efficiency 95 %"), rows, answers=("efficiency",))
    monkeypatch.setenv("COLUMNS", "80")
    assert "\nm1      1.00 ms (1.10 to 1.90 ms)  0.91 (0.81 to 0.91)\n" in on_terminal(table)
    monkeypatch.setenv("COLUMNS", "50")
    text = on_terminal(table)
    assert "\nmethod     step    efficiency (95 %)\nm1      1.00 ms  0.91 (0.81 to 0.91)\n" in text
    assert text.endswith("\nMore columns on a wider terminal: step (95 %).\n")
