"""The journal: rows from readings of the counters."""

import math

from hpcdl.fabric.comm import Counters
from hpcdl.trace.recorder import Evaluation, Recorder, Step
from hpcdl.training.parts.journal import Journal


def new_journal(*readings, **options):
    recorder = Recorder(**options)
    return recorder, Journal(recorder, iter(readings).__next__)


def test_a_step_is_the_difference_of_two_readings():
    recorder, journal = new_journal(
        Counters(1000, 5, 50, 100, 40),
        Counters(4000, 7, 90, 600, 70),
        Counters(9000, 7, 90, 600, 70),
        Counters(9500, 8, 91, 601, 70),
    )
    with journal.step(epoch=2, learning_rate=0.5) as outcome:
        outcome.loss, outcome.correct, outcome.images = 1.25, 3, 4
    with journal.step():
        pass
    first, second = recorder.steps
    assert first == Step(0, 2, 1000, 4000, 1.25, 3, 4, 500, 2, 40, 0.5, 30)
    assert second[:4] == (1, 0, 9000, 9500)
    assert (second.correct, second.images, second.compute_ns, second.messages, second.bytes) == (0, 0, 1, 1, 1)
    assert second.input_ns == 0
    assert math.isnan(second.loss)  # the body set no loss
    journal.repetitions([(1, 2)], messages=1, size=8)
    assert math.isnan(recorder.steps[-1].loss)  # no training


def test_evaluations_count_only_the_time_of_steps():
    recorder, journal = new_journal(*(Counters(seconds * 10**9, 0, 0, 0, 0) for seconds in (0, 1, 8, 10)))
    with journal.step():
        pass
    journal.evaluation(0.5, 2.0, 0.25, 120)
    with journal.step():
        pass
    journal.evaluation(1.0, 1.0, 0.75, 240)
    assert recorder.evaluations == [
        Evaluation(1, 0.5, 1.0, 2.0, 0.25, 120),
        Evaluation(2, 1.0, 3.0, 1.0, 0.75, 240),
    ]


def test_simulated_ranks_share_the_limit_of_events_and_not_that_of_updates():
    """One of 10 ranks may be the only server, which records all updates."""
    recorder, journal = new_journal(limit=30, update_limit=20)
    server = journal.virtual(lambda: Counters(0, 0, 0, 0, 0), 10)
    for version in range(25):
        server.update(1, version, 0, 0.5)
    (virtual,) = recorder.virtual
    assert (len(virtual.updates), virtual.dropped_updates, virtual.dropped) == (20, 5, 0)
    assert virtual.limit == 3
