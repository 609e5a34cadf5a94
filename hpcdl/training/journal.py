"""What a program reports of itself while it runs; the interpreter supplies the clock and the counts."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.trace.recorder import Evaluation, Recorder, Step, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcdl.fabric.comm import Event, Gauge


class Moment(NamedTuple):
    """When something was worth an evaluation that comes later."""

    steps: int
    """This rank's, so far."""
    training_ns: int
    """Since training began on this rank."""


class Journal:
    """One rank's journal of one case. Programs mark steps and evaluations in it and never see a time.

    ``read`` gives the interpreter's gauge: its clock and what it has counted. ``before_step`` is called with
    the number of each step.
    """

    def __init__(
        self,
        recorder: Recorder,
        read: Callable[[], Gauge],
        before_step: Callable[[int], None] = lambda _step: None,
    ) -> None:
        self._recorder = recorder
        self._before_step = before_step
        self.read = read
        self._began_ns: int | None = None
        self._training_ns = 0
        self._steps = 0

    @property
    def events(self) -> list[Event] | None:
        """Where the interpreter is to put what it traces, None if nothing."""
        return self._recorder.events

    def virtual(
        self, read: Callable[[], Gauge], ranks: int = 1, before_step: Callable[[int], None] = lambda _step: None
    ) -> Journal:
        """Open the journal of one of ``ranks`` ranks that this process simulates; ``read`` is its gauge.

        Together they keep as many events as a process may.
        """
        recorder = Recorder(
            events=self._recorder.events is not None,
            limit=self._recorder.limit // ranks,
            update_limit=self._recorder.update_limit,
        )
        self._recorder.virtual.append(recorder)
        return Journal(recorder, read, before_step)

    def begin(self) -> None:
        """Training begins here, on a rank whose :meth:`moment` is going to be asked for."""
        self._began_ns = self.read().time_ns

    def moment(self) -> Moment:
        """Return where training is; ValueError if it has not begun."""
        if self._began_ns is None:
            raise ValueError("a moment of a training that has not begun")
        return Moment(self._steps, self.read().time_ns - self._began_ns)

    @contextmanager
    def step(self, epoch: int = 0, learning_rate: float = float("nan")) -> Iterator[Outcome]:
        """The body is one step; what it learns goes into the yielded outcome."""
        outcome = Outcome()
        self._before_step(self._steps)
        before = self.read()
        yield outcome
        after = self.read()
        self._training_ns += after.time_ns - before.time_ns
        self._recorder.steps.append(
            Step(
                self._steps,
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
        self._steps += 1
        self._recorder.trim()

    def repetitions(self, spans: Sequence[tuple[int, int]], messages: int, size: int) -> None:
        """Note repetitions timed by the caller, (begin, end) in ns; each sent so many messages and bytes."""
        for begin, end in spans:
            row = Step(self._steps, 0, begin, end, messages=messages, bytes=size)
            self._recorder.steps.append(row)
            self._steps += 1

    def evaluation(
        self,
        epoch: float,
        loss: float,
        accuracy: float,
        samples: int,
        *,
        consensus: float = math.nan,
        at: Moment | None = None,
    ) -> None:
        """Note what the test set said of the parameters as they are, or as they were ``at`` a moment.

        Without a moment only steps count as training time.
        """
        steps, training_ns = at or (self._steps, self._training_ns)
        self._recorder.evaluations.append(
            Evaluation(steps, epoch, training_ns * 1e-9, loss, accuracy, samples, consensus)
        )

    def update(self, worker: int, version: int, staleness: int, learning_rate: float) -> None:
        """Note a gradient of ``worker`` that was applied here; see :class:`hpcdl.trace.recorder.Update`."""
        self._recorder.updates.append(Update(self.read().time_ns, worker, version, staleness, learning_rate))
        self._recorder.trim()

    def memory(self, size: int) -> None:
        """Note how many bytes of vectors this rank holds."""
        self._recorder.memory_bytes = size


class Outcome:
    """What one rank's step came to."""

    __slots__ = ("correct", "images", "loss")

    def __init__(self) -> None:
        self.loss = float("nan")
        """Mean over this rank's images."""
        self.correct = 0
        self.images = 0
