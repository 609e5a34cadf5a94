"""Tables on a terminal: its width, whole names, and colours."""

import re

from hpcdl.report.formats.document import Document, Section, Table
from hpcdl.report.formats.summary import coloured, plain

NAMES = ("parameter_server", "hierarchical(inner=ring)", "sharded_parameter_server")
HEADER = ("method", "ranks", *(f"measured time {n}" for n in range(6)), "near-linear")
PAGE = Document(
    "hpcdl: run",
    [
        Section(
            "Scaling",
            ["OVERSUBSCRIBED: a line of prose. " * 9],
            tables=[Table("", HEADER, [(name, "2", *["12.34 ms"] * 6, "yes") for name in NAMES])],
        )
    ],
)


def test_tables_fit_the_terminal_with_whole_names_and_the_verdict(monkeypatch):
    for columns in [50, 80, 120, 200]:
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = plain([PAGE]).splitlines()
        assert max(map(len, lines)) <= columns
        for name in NAMES if columns > 50 else NAMES[:1]:
            (line,) = [line for line in lines if line.startswith(name)]
            assert line.endswith(" yes")
        assert ("More columns on a wider terminal: " in plain([PAGE])) is (columns < 120)


def test_a_table_whose_numbers_are_all_in_a_line_is_only_that_line():
    rows = [(f"m{n}", str(n), "0.989", f"{n} s") for n in range(9)]
    table = Table("digits", ("method", "ranks", "accuracy", "time"), rows).first(9)
    text = plain([Document("d", [Section("s", tables=[table.without("time"), table])])])
    line = "All 9 rows: accuracy 0.989."
    assert text.startswith(f"d\n\nS\ndigits\n{line}\ndigits\nmethod  ranks  time\nm0          0   0 s\n")


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = plain([PAGE])
    shown = coloured(text, terminal=True)
    assert "\033[1mSCALING\033[0m" in shown
    assert "\033[33mOVERSUBSCRIBED\033[0m" in shown
    assert re.sub(r"\033\[\d+m", "", shown) == text == coloured(text, terminal=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured(text, terminal=True) == text


def test_a_long_verdict_is_wrapped_before_columns_are_left_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    header, cells = ("method", "ranks", "step", "near-linear"), ("sharded_parameter_server", "2", "6.58 ms")
    verdict = "inconclusive: too many cases for this difference"
    table = Table("", header, [(*cells, verdict)], 1, key="near-linear")
    shown = plain([Document("title", [Section("Scaling", tables=[table])])])
    assert all(cell in shown for cell in cells)
    assert "on a wider terminal" not in shown
    assert max(map(len, shown.splitlines())) <= 80
