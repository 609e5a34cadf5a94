"""The comparison of training steps compares what it says."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import steps
    import turns

    yield steps, turns
    for name in ("steps", "turns"):
        sys.modules.pop(name)


def test_the_answer_is_a_sentence_for_each_number_of_threads(tools):
    steps, _ = tools
    assert steps.sentences({1: [(1.0, 1.0, 1.0), (4.0, 1.0, 1.0)], 2: [(1.5, 1.2, 1.6)]}) == [
        "On one thread a training step is 2.00 times as fast as PyTorch's (at least 1.00 times).",
        "With two threads a step of hpcdl is 1.20 times as fast as with one, a step of PyTorch 1.60.",
        "On two threads a training step is 1.50 times as fast as PyTorch's (at least 1.50 times).",
    ]


@pytest.mark.slow
def test_as_many_threads_compute_as_are_asked_for(tools):
    """Before, one thread of hpcdl's stood beside two of PyTorch's. Shares of CPU time, so that neighbours change nothing."""
    steps, turns = tools
    with turns.ensembles(steps.players("nin_cifar", 16, ["numba"], [1, 2])) as found:
        one, two = (found["numba", count].play()[0]["others"] for count in (1, 2))
    assert one < 0.1
    assert two > 0.3 / 1.3  # of two threads that compute for at least 1.3 times the time that passes
