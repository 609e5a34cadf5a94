"""The table of sentences: each row once, and a test for each topic that makes its sentences appear."""

from pathlib import Path

import pytest

from hpcdl.exit_codes import FAILED, INCONCLUSIVE, OK
from hpcdl.report.formats import verdicts
from hpcdl.report.formats.verdicts import SENTENCES, Sentence, Verdict


def test_rows_are_whole_sentences_of_their_own():
    assert len({(row.topic, row.word) for row in SENTENCES}) == len(SENTENCES)
    for row in SENTENCES:
        assert row.says.endswith(".") and row.when, row
        assert not (row.good and row.code != OK), row


def test_each_topic_has_a_test_that_makes_its_words_appear():
    tests = "".join(file.read_text("utf-8") for file in Path(__file__).parents[1].rglob("test_*.py"))
    assert {row.topic for row in SENTENCES if f'words("{row.topic}")' not in tests} == set()


def test_a_verdict_prints_its_row_marks_and_reasons(monkeypatch):
    row = Sentence("topic", "slow", "always", "{case} takes {change} more.", FAILED)
    other = Sentence("topic", "open", "never", "{case} is not judged.", INCONCLUSIVE)
    monkeypatch.setattr(verdicts, "_ROWS", {("topic", "slow"): row, ("topic", "open"): other})
    slow = Verdict(topic="topic", word="slow", case="ring", marks=["emulated"], facts={"change": "5 %"})
    waits = Verdict(topic="topic", word="open", case="tree", remedy="Run 3 launches.")
    assert slow.sentence == "ring takes 5 % more (emulated)."
    assert waits.sentence == "tree is not judged. Run 3 launches."
    assert slow.record()["size"] is None and slow.record()["sentence"] == slow.sentence
    assert [verdicts.exit_code(case) for case in ([], [waits], [waits, slow])] == [OK, INCONCLUSIVE, FAILED]
    with pytest.raises(KeyError, match="change"):
        _ = Verdict(topic="topic", word="slow").sentence
