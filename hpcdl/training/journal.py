"""What a program reports of itself while it runs; the interpreter supplies the clock and the counts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcdl.trace.recorder import Evaluation, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcdl.fabric.comm import Gauge
    from hpcdl.trace.recorder import Recorder


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
        self._training_ns = 0
        self._steps = 0

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

    def evaluation(self, epoch: float, loss: float, accuracy: float, samples: int) -> None:
        """Note what the test set said after the steps so far; only steps count as training time."""
        self._recorder.evaluations.append(
            Evaluation(self._steps, epoch, self._training_ns * 1e-9, loss, accuracy, samples)
        )


class Outcome:
    """What one rank's step came to."""

    __slots__ = ("correct", "images", "loss")

    def __init__(self) -> None:
        self.loss = float("nan")
        """Mean over this rank's images."""
        self.correct = 0
        self.images = 0
