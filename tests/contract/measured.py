"""Runs of collectives whose times are those of a network, so that what is predicted and measured can be told apart."""

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.prediction.programs import program_of

HOSTS = {"ranks": [{"hostname": f"n{rank}"} for rank in range(4)]}
SUITE = """
[suite]
name = "sums"
[[case]]
kind = "collective"
aggregation = {}
ranks = [2, 4]
message_bytes = {}
"""


def measure(hand, network, text, environment=HOSTS, factor=lambda _: 1, **fields):
    """Measure the cases of a suite on ``network``; ``factor`` makes the times of a case's fields longer."""
    for case in suite.parse(text, "s.toml").cases:
        described = {**case.fields(), "warmup_steps": 0, "correct": True, **fields}
        ranks = described.pop("ranks")
        simulation = program_of(Record.of(case.fields()), ranks).simulate(network)
        hand.case([[1e3 * simulation.seconds * factor(case.fields())] * 6] * ranks, **described)
    return hand.read(environment)
