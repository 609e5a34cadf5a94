"""The journal turns readings of a gauge into rows."""

import math

from hpcdl.fabric.comm import Gauge
from hpcdl.trace.recorder import Evaluation, Recorder, Step
from hpcdl.training.journal import Journal


def journal(*readings, **options):
    recorder = Recorder(**options)
    return recorder, Journal(recorder, iter(readings).__next__)


def test_a_step_is_what_happened_between_two_readings():
    recorder, notes = journal(
        Gauge(1000, 5, 50, 100, 40),
        Gauge(4000, 7, 90, 600, 70),
        Gauge(9000, 7, 90, 600, 70),
        Gauge(9500, 8, 91, 601, 70),
    )
    with notes.step(epoch=2, learning_rate=0.5) as outcome:
        outcome.loss, outcome.correct, outcome.images = 1.25, 3, 4
    with notes.step():
        pass
    first, second = recorder.steps
    assert first == Step(0, 2, 1000, 4000, 1.25, 3, 4, 500, 2, 40, 0.5, 30)
    assert second[:4] == (1, 0, 9000, 9500)
    assert (second.correct, second.images, second.compute_ns, second.messages, second.bytes) == (0, 0, 1, 1, 1)
    assert second.input_ns == 0
    assert math.isnan(second.loss)  # nothing was learnt


def test_evaluations_count_the_time_of_steps_alone():
    recorder, notes = journal(*(Gauge(seconds * 10**9, 0, 0, 0, 0) for seconds in (0, 1, 8, 10)))
    with notes.step():
        pass
    notes.evaluation(0.5, 2.0, 0.25, 120)
    with notes.step():
        pass
    notes.evaluation(1.0, 1.0, 0.75, 240)
    assert recorder.evaluations == [
        Evaluation(1, 0.5, 1.0, 2.0, 0.25, 120),
        Evaluation(2, 1.0, 3.0, 1.0, 0.75, 240),
    ]


def test_repetitions_are_steps_timed_by_the_caller():
    recorder, notes = journal()
    notes.repetitions([(10, 20), (30, 45)], messages=3, size=64)
    rows = [(row.step, row.begin, row.end, row.messages, row.bytes) for row in recorder.steps]
    assert rows == [(0, 10, 20, 3, 64), (1, 30, 45, 3, 64)]


def test_simulated_ranks_share_the_limit_of_events_and_not_that_of_updates():
    """Of 10 ranks one may be the only server."""
    recorder, notes = journal(limit=30, update_limit=20)
    server = notes.virtual(lambda: Gauge(0, 0, 0, 0, 0), 10)
    for version in range(25):
        server.update(1, version, 0, 0.5)
    (virtual,) = recorder.virtual
    assert (len(virtual.updates), virtual.dropped_updates, virtual.dropped) == (20, 5, 0)
    assert virtual.limit == 3


def test_a_step_trims_the_events():
    recorder, notes = journal(*[Gauge(0, 0, 0, 0, 0)] * 2, limit=3)
    recorder.events += [(0, "add", 0, 0, -1, 0)] * 5
    with notes.step():
        pass
    assert (len(recorder.events), recorder.dropped) == (3, 2)
