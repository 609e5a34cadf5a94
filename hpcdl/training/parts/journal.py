"""Journal of a running program: steps, evaluations and updates; the interpreter supplies clock and counters."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcdl.fabric.comm import Counters, Event
from hpcdl.trace.recorder import SIMULATED_EVENT_LIMIT, Evaluation, Recorder, Step, Update


class Moment(NamedTuple):
    """Moment of training for which an evaluation is recorded later."""

    steps: int
    training_ns: int
    """Time since :meth:`Journal.begin`."""


@dataclass(eq=False)
class Journal:
    """One rank's journal of one case. Programs record steps and evaluations in it and see no clock.

    ``read()`` returns the interpreter's counters and clock. ``before_step(number)`` is called before each step.
    ``draw`` is the number of the launch's random compute times and pauses, from 0.
    """

    recorder: Recorder
    read: Callable[[], Counters]
    before_step: Callable[[int], None] = lambda _step: None
    draw: int = 0
    steps: int = field(default=0, init=False)
    _began_ns: int | None = field(default=None, init=False)
    _training_ns: int = field(default=0, init=False)

    @property
    def events(self) -> list[Event] | None:
        """List to which the interpreter appends traced events; None: events are not traced."""
        return self.recorder.events

    def events_from(self, step: int) -> list[Event] | None:
        """Return this rank's events from the beginning of ``step`` on; None if some are not traced, or dropped."""
        self.recorder.trim()
        events = self.recorder.events
        if events is None or self.recorder.dropped or step >= self.steps:
            return None
        begin = self.recorder.step_table()["begin"][step]
        return [event for event in events if event[2] >= begin]

    def virtual(
        self, read: Callable[[], Counters], ranks: int = 1, before_step: Callable[[int], None] = lambda _step: None
    ) -> "Journal":
        """Return the journal of one of ``ranks`` ranks that this process simulates, with its counters ``read``.

        The journals share the limit on events of a process.
        """
        recorder = Recorder(events=self.recorder.events is not None, limit=self.recorder.limit // ranks)
        self.recorder.virtual.append(recorder)
        return Journal(recorder, read, before_step)

    def of_ranks(self, ranks: int) -> Sequence["Journal"]:
        """Return journals of all ``ranks`` simulated ranks if events are traced; otherwise this journal alone."""
        if self.events is None:
            return [self]
        self.recorder.limit = SIMULATED_EVENT_LIMIT
        return [self.virtual(self.read, ranks) for _ in range(ranks)]

    def begin(self) -> None:
        """Start the training time of :meth:`moment`."""
        self._began_ns = self.read().time_ns

    def moment(self) -> Moment:
        """Return the present moment. Raises ValueError before :meth:`begin`."""
        if self._began_ns is None:
            raise ValueError("moment() before begin(): training has no start time")
        return Moment(self.steps, self.read().time_ns - self._began_ns)

    @contextmanager
    def step(self, epoch: int = 0, learning_rate: float = float("nan")) -> Iterator["Outcome"]:
        """Record the body of the ``with`` statement as one step, with the outcome that it fills."""
        outcome = Outcome()
        self.before_step(self.steps)
        before = self.read()
        yield outcome
        after = self.read()
        self._training_ns += after.time_ns - before.time_ns
        self.recorder.steps.append(
            Step(
                self.steps,
                epoch,
                before.time_ns,
                after.time_ns,
                outcome.loss,
                outcome.correct,
                outcome.images,
                after.compute_ns - before.compute_ns,
                after.messages - before.messages,
                after.bytes - before.bytes,
                learning_rate,
                after.input_ns - before.input_ns,
            )
        )
        self.steps += 1
        self.recorder.trim()

    def repetitions(
        self, spans: Sequence[tuple[int, int]], messages: int, size: int, computed_ns: int = 0
    ) -> None:
        """Record repetitions timed by the caller: (begin, end) in ns; each one's messages, bytes, computing."""
        for begin, end in spans:
            row = Step(self.steps, 0, begin, end, compute_ns=computed_ns, messages=messages, bytes=size)
            self.recorder.steps.append(row)
            self.steps += 1

    def evaluation(
        self,
        epoch: float,
        loss: float,
        accuracy: float,
        samples: int,
        *,
        consensus: float = math.nan,
        fidelity: tuple[float, float, float] = (math.nan, math.nan, math.nan),
        at: Moment | None = None,
    ) -> None:
        """Record a test of the present parameters, or of those ``at`` a moment; see :class:`Evaluation`.

        Without a moment the training time is the sum of the steps.
        """
        steps, training_ns = at or (self.steps, self._training_ns)
        self.recorder.evaluations.append(
            Evaluation(steps, epoch, training_ns * 1e-9, loss, accuracy, samples, consensus, *fidelity)
        )

    def update(self, worker: int, version: int, staleness: int, learning_rate: float) -> None:
        """Record that this rank applied a gradient of ``worker``; see :class:`hpcdl.trace.recorder.Update`."""
        self.recorder.updates.append(Update(self.read().time_ns, worker, version, staleness, learning_rate))
        self.recorder.trim()


@dataclass(eq=False, slots=True)
class Outcome:
    """Outcome of one rank's step."""

    loss: float = math.nan
    """Mean loss over this rank's images."""
    correct: int = 0
    images: int = 0
