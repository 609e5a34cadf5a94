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


@pytest.mark.slow
def test_as_many_threads_compute_as_are_asked_for(tools):
    """Before, one thread of hpcdl's stood beside two of PyTorch's. Shares of CPU time, so that neighbours change nothing."""
    steps, turns = tools
    with turns.ensembles(steps.players("nin_cifar", 16, ["numba"], [1, 2])) as found:
        one, two = (found["numba", count].play()[0]["others"] for count in (1, 2))
    assert one < 0.1
    assert two > 0.3 / 1.3  # of two threads that compute for at least 1.3 times the time that passes
