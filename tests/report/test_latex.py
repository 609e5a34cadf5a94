"""LaTeX: text of a trace stays text."""

import re

from hpcdl.report.formats.writers import latex_text
from hpcdl.report.render import render


def test_characters_that_latex_would_obey_are_escaped():
    assert latex_text(r"\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"
    assert latex_text("50 % of $x_1 & #2") == r"50~\% of \$x\_1 \& \#2"
    assert latex_text("a--b ~^") == r"a{-}{-}b \textasciitilde{}\textasciicircum{}"
    assert latex_text("日\x1b") == r"U+65E5\textbackslash{}x1b"


def test_every_environment_ends_and_rows_are_as_wide_as_their_table(hand):
    for ranks in (1, 2):
        hand.train([[80.0 / ranks] * 12] * ranks, aggregation="ring", model="a_b & c%")
    text = render([hand.read({}, "[suite]\nname = 's'\nquestion = '100 %?'\n")], "tex")
    open_ones = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if what == "begin":
            open_ones.append(name)
        else:
            assert open_ones.pop() == name
    assert not open_ones
    assert text.startswith(r"\documentclass")
    tables = re.findall(r"\\begin\{longtable\}\[l\]\{@\{\}(.*?)@\{\}\}\n(.*?)\\end\{longtable\}", text, re.DOTALL)
    for layout, body in tables:
        columns = re.sub(r">\{.*?\}p\{\w+\}", "l", layout)
        rows = [line for line in body.splitlines() if line.endswith((r"\\", r"\endhead"))]
        assert len(rows) > 1
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
    assert r"100~\%?" in text
