"""Each reduction of a run is computed once, whatever the number of sections and formats."""

import pytest

from hpcdl.report.render import FORMATS, renderings
from hpcdl.report.run import findings

REDUCTIONS = ("launches", "records", "problems", "settings", "warnings", "predict_run")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_is_computed_once(hand, monkeypatch, name):
    calls = []
    original = getattr(findings, name)
    monkeypatch.setattr(findings, name, lambda *given: calls.append(name) or original(*given))
    for ranks in (1, 2):
        hand.train([[40.0 / ranks] * 30] * ranks)
    renderings([hand.read()], list(FORMATS))
    assert calls == [name]


def test_events_are_read_once_for_all_formats(hand, monkeypatch):
    hand.train([[20.0] * 30] * 2)
    run = hand.read()
    reads = []
    monkeypatch.setattr(type(run), "events_of", lambda *given: reads.append(given[1]) or run._events([given[1]]))
    renderings([run], ["markdown", "summary"])
    assert reads == [0]
