"""``stop_at_target``: a strategy stops at the target if its traits declare that it can."""

import pytest
from contract.tiny import tiny_session

from hpcdl import registry
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.traits import Strategy


@pytest.mark.parametrize("name", registry.names("training"))
def test_a_strategy_stops_at_the_target_as_its_traits_declare(name):
    strategy = registry.find("training", name)
    recorders = [Recorder(events=False) for _ in range(3)]
    keys = {"steps": 12, "evaluate_every": 1.0, "target_accuracy": 0.0, "stop_at_target": True}
    in_process(3).run(lambda comm: strategy(comm, tiny_session(recorders[comm.rank], **keys)))
    last = recorders[0].evaluations[-1].step
    assert (last < 12) == registry.traits("training", name, Strategy).stops_at_target
