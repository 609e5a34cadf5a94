"""Texts of a trace and of a suite are shown as text, whatever they hold."""

import csv
import io
import json

import pytest
from conftest import Hand

from hpcdl.report.formats.cells import fenced, markdown, markdown_cell
from hpcdl.report.render import render

HOSTILE = "\x1b[2Jring\n# fine\u202e\x9b1m\u2028|x|<script>alert(1)</script>```![a](http://tracker.example/x)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in which every text is hostile."""
    hand = Hand(tmp_path_factory.mktemp("run"))
    texts = dict.fromkeys(("suite", "case", "model", "dataset", "aggregation", "optimizer", "system"), HOSTILE)
    for ranks in (1, 2):
        hand.train([[5.0 / ranks] * 9] * ranks, **texts, error=None)
    hand.case([[1.0] * 8] * 2, kind="collective", collective=HOSTILE, aggregation=HOSTILE, message_bytes=64)
    hand.train([[9.0] * 9] * 3, **texts, error=HOSTILE)
    environment = {
        "date": HOSTILE,
        "command": ["hpcdl", HOSTILE],
        "cpu": {"model": HOSTILE, "governor": HOSTILE},
        "mpi": {"library": HOSTILE, "version": HOSTILE, "nodes": 1},
        "variables": {"UCX_TLS": HOSTILE},
        "ranks": [{"hostname": HOSTILE, "affinity": "0"}],
    }
    question = json.dumps(HOSTILE)
    suite = f'[suite]\nname = "s"\nquestion = {question}\n# {HOSTILE}\n````\n'
    return hand.read(environment, suite)


def test_no_character_but_the_line_end_is_a_command(run):
    for form in ("md", "summary", "csv", "json", "html", "tex"):
        text = render([run], form)
        assert text.count("2Jring") >= 5, form
        assert {one for one in text if not one.isprintable()} == {"\n"}, form


def test_markdown_has_no_html_links_or_blocks_of_a_trace(run):
    page = render([run], "md")
    prose, fence, _verbatim = page.partition("\n`````toml\n")
    assert fence, "the fence is longer than the one in the suite"
    assert page.endswith("\n`````\n")
    assert "<" not in prose
    assert "](" not in prose
    assert "\n# fine" not in prose
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    assert rows
    for row, following in zip(rows, prose.splitlines(), strict=False):
        assert row.startswith("|"), following


def test_csv_has_one_line_for_each_record(run):
    text = render([run], "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(text.splitlines()) - 1
    assert rows[0]["model"].startswith("\\x1b[2Jring\\n# fine\\u202e")


def test_a_line_begins_no_block():
    for text, shown in [
        ("# a", "\\# a"),
        ("1. a", "1\\. a"),
        ("1.5 s", "1.5 s"),
        ("- a", "\\- a"),
        ("-426 us", "-426 us"),
        ("~0: faster", "~0: faster"),
        ("```toml", "\\```toml"),
        ("> a", "\\> a"),
        ("[a]: http://x", "\\[a]: http://x"),
        ("efficiency >= 0.90 & more", "efficiency >= 0.90 & more"),
    ]:
        assert markdown(text) == shown


def test_pipes_of_a_cell_are_escaped_whatever_stands_before_them():
    assert [markdown_cell(text) for text in ("a|b", "a\\|b", "-")] == ["a\\|b", "a\\\\\\|b", "-"]


def test_a_fence_is_longer_than_those_inside():
    assert fenced("a\n````\n\tb\x1b\n", "toml") == "`````toml\na\n````\n    b\\x1b\n`````"
