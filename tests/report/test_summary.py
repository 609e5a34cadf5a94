"""Tables on a terminal: its width, whole names, and colours."""

import re

from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.tables import Table
from hpcdl.report.formats.writers import coloured, plain

from .conftest import on_terminal

NAMES = ("parameter_server", "hierarchical(inner=ring)", "sharded_parameter_server")
HEADER = ("method", "ranks", *(f"measured time {n}" for n in range(6)), "near-linear")
TABLE = Table(
    "", HEADER, [(name, f"{n}", *[f"12.3{n} ms"] * 6, "yes" if n else "no") for n, name in enumerate(NAMES)]
)
PAGE = Document("hpcdl: run", [Section("Scaling", ["DISTURBED: a line of prose. " * 9], tables=[TABLE])])


def test_tables_fit_the_terminal_with_whole_names_and_the_verdict(monkeypatch):
    for columns in [50, 80, 120, 200]:
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = plain([PAGE]).splitlines()
        assert max(map(len, lines)) <= columns
        for name in NAMES if columns > 50 else NAMES[:1]:
            (line,) = [line for line in lines if line.startswith(name)]
            assert line.endswith((" yes", " no"))
        assert ("More columns on a wider terminal: " in plain([PAGE])) is (columns < 120)


def test_values_that_all_rows_share_stand_above_the_table():
    """Names of a trace have no control characters there, either."""
    rows = [(f"m{n}", "\x1b4", "0.989", f"{n} s") for n in range(9)]
    table = Table("digits", ("method", "ranks", "accuracy", "time"), rows).first(9)
    text = on_terminal(table)
    shared = "The same in all 9 rows: ranks \\x1b4, accuracy 0.989."
    assert text.startswith(f"d\n\nS\ndigits\n{shared}\nmethod  time\nm0       0 s\n")


def test_columns_that_answer_are_left_out_at_no_width(monkeypatch):
    header = ("method", *(f"number {n}" for n in range(9)), "error", "error 95 %", "verdict", "p99")
    rows = [
        (f"m{n}", *[f"{n}{column}.0 ms" for column in range(9)], f"{n}", "0 to 2", "no" * n, "3") for n in range(3)
    ]
    table = Table("", header, rows, answers=header[-4:-1], details=["p99"])
    short = table.first(3)
    numbers = (f"number {n}" for n in range(6))
    assert short.header == ("method", *numbers, "error (95 %)", "verdict")
    assert short.left_out == "report.html also has the columns: number 6, number 7, number 8."
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = on_terminal(short)
        (row,) = (line.split() for line in text.splitlines() if line.startswith("m1"))
        assert row[-5:] == ["1", "(0", "to", "2)", "no"]
        assert not {"error", "verdict"} & set(text.partition("wider terminal:")[2].replace(",", " ").split())


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = plain([PAGE])
    shown = coloured(text, terminal=True)
    assert "\033[1mSCALING\033[0m" in shown
    assert "\033[33mDISTURBED\033[0m" in shown
    assert re.sub(r"\033\[\d+m", "", shown) == text == coloured(text, terminal=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured(text, terminal=True) == text


def test_a_long_verdict_is_wrapped_before_columns_are_left_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    header, cells = ("method", "ranks", "step", "near-linear"), ("sharded_parameter_server", "2", "6.58 ms")
    verdict = "inconclusive: too many cases for this difference"
    table = Table("", header, [(*cells, verdict)], 1, answers=("near-linear",))
    shown = on_terminal(table)
    assert all(cell in shown for cell in cells)
    assert "on a wider terminal" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_groups_are_headings_of_their_rows_if_a_terminal_is_narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("simulated DistBelief's speech network", "replayed GoogLeNet")
    rows = [(f"a_method_of_a_long_name_{n}", "1 s") for n in "ab"]
    tables = [Table(name, ("method", "time"), rows) for name in names]
    text = on_terminal(*Section("s", tables=tables, per="setting").answering(8))
    assert "method                     time\n" in text
    for name in names:
        assert f"\n{name}:\na_method_of_a_long_name_a   1 s\na_method_of_a_long_name_b   1 s\n" in text


def test_notes_of_columns_that_are_left_out_are_left_out():
    notes = ["Load balance: mean / longest.", "Step: a median."]
    header, details = ("method", "step", "load balance"), ["load balance"]
    assert Table("", header, [("a", "1 s", "0.5")], notes=notes, details=details).first(1).notes == notes[1:]
