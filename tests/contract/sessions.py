"""Session of one rank from flat settings."""

from hpcdl.training.parts.evaluation import Evaluation
from hpcdl.training.parts.inputs import Inputs
from hpcdl.training.parts.session import Session

EVALUATION = {"evaluate_every": "every", "target_accuracy": "target_accuracy", "stop_at_target": "stop_at_target"}


def training_session(
    *, replica, optimizer, aggregate, dataset, journal, learning_rate, global_batch, steps, seed, **settings
):
    """Return a session that trains on ``dataset``; see :class:`Inputs`, :class:`Evaluation`, :class:`Session`."""
    taken = {name: settings.pop(name) for name in ("shares", "partition", "prefetch") if name in settings}
    group = settings.get("group")
    inputs = Inputs(replica, dataset, global_batch, steps, seed, group=group, **taken)
    kept = {own: settings.pop(name) for name, own in EVALUATION.items() if name in settings}
    evaluation = Evaluation(inputs, journal, steps, independent=settings.get("independent", False), **kept)
    return Session(
        replica,
        optimizer,
        aggregate,
        inputs,
        evaluation,
        journal,
        learning_rate,
        global_batch,
        steps,
        seed,
        **settings,
    )
