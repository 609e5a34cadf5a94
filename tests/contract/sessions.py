"""Session of one rank from flat settings."""

from hpcdl.fabric.comm import Counters
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.evaluation import Evaluation
from hpcdl.training.parts.inputs import Inputs
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.session import Session

SEED = 3
EVALUATION = {"evaluate_every": "every", "target_accuracy": "target_accuracy", "stop_at_target": "stop_at_target"}


def silent_journal(recorder=None, *options):
    """Return a journal whose counters stand still."""
    return Journal(recorder or Recorder(events=False), lambda: Counters(0, 0, 0, 0, 0), *options)


def training_session(
    *, replica, optimizer, aggregate, dataset, journal, learning_rate, global_batch, steps, seed=SEED, **settings
):
    """Return a session that trains on ``dataset``, by default evaluated only at the end.

    See :class:`Inputs`, :class:`Evaluation`, :class:`Session`.
    """
    taken = {name: settings.pop(name) for name in ("shares", "partition", "prefetch") if name in settings}
    group = settings.get("group")
    inputs = Inputs(replica, dataset, global_batch, steps, seed, group=group, **taken)
    kept = {"every": 1000} | {own: settings.pop(name) for name, own in EVALUATION.items() if name in settings}
    evaluation = Evaluation(inputs, journal, independent=settings.get("independent", False), **kept)
    return Session(replica, optimizer, aggregate, inputs, evaluation, learning_rate, **settings)
