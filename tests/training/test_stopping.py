"""Training that is to end at its target ends there, or a suite that says so is refused."""

from importlib import import_module

import pytest
from contract.tiny import tiny_session

from hpcdl import registry
from hpcdl.fabric.inprocess import in_process
from hpcdl.trace.recorder import Recorder


@pytest.mark.parametrize("name", registry.names("training"))
def test_a_strategy_stops_at_the_target_unless_its_module_says_that_it_does_not(name):
    strategy = registry.find("training", name)
    recorders = [Recorder(events=False) for _ in range(3)]
    keys = {"steps": 12, "evaluate_every": 1.0, "target_accuracy": 0.0, "stop_at_target": True}
    in_process(3).run(lambda comm: strategy(comm, tiny_session(recorders[comm.rank], **keys)))
    stops = getattr(import_module(strategy.__module__), "STOPS", True)
    last = recorders[0].evaluations[-1].step
    assert (last < 12) == stops
