"""What a training case wants to go wrong: a rank that is slow, a rank that dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from hpcdl import registry
from hpcdl.assembly import steps
from hpcdl.fabric.failure import Failure
from hpcdl.fabric.straggler import Straggler
from hpcdl.strategy import ask_strategy
from hpcdl.suite import about

if TYPE_CHECKING:
    from collections.abc import Mapping

Accident = TypeVar("Accident", Straggler, Failure)

KEEPER: Final = "rank 0 keeps the record and cannot be the one that dies"


def straggler(settings: Mapping[str, Any]) -> Straggler | None:
    """The case's, None if it has none. Raises ValueError, led by the key."""
    return _accident(Straggler, settings)


def failure(settings: Mapping[str, Any]) -> Failure | None:
    """The case's, None if it has none. Raises ValueError, led by the key."""
    return _accident(Failure, settings)


def check(settings: Mapping[str, Any]) -> None:
    """Raise ValueError, led by its key, for what cannot happen, or would end the training, or change nothing."""
    slow, dying = straggler(settings), failure(settings)
    if slow is not None and slow.probability:
        with about("straggler"):
            _check_pauses(slow.rank, settings)
    if dying is not None:
        with about("failure"):
            _check_death(dying, settings)


def _accident(kind: type[Accident], settings: Mapping[str, Any]) -> Accident | None:
    key = kind.__name__.lower()
    if settings[key] is None:
        return None
    with about(key):
        registry.check_settings(kind, settings[key])
        accident = kind(**registry.in_full(kind, settings[key]))
        if not 0 <= accident.rank < settings["ranks"]:
            raise ValueError(f"rank {accident.rank} is not among the {settings['ranks']} ranks of the case")
    return accident


def _check_pauses(rank: int, settings: Mapping[str, Any]) -> None:
    workers = ask_strategy(settings, "workers")
    if workers is not None and rank not in workers:
        who = f"these have: {workers[0]} to {workers[-1]}"
        raise ValueError(f"rank: rank {rank} has no batches to pause before; {who}")


def _check_death(dying: Failure, settings: Mapping[str, Any]) -> None:
    name, mortal = settings["training"]["name"], ask_strategy(settings, "mortal")
    others = mortal[1:] if 0 in mortal else mortal
    if dying.rank not in others:
        who = f"these may die: {others[0]} to {others[-1]}" if others else "with such settings none may die"
        why = f"{name!r} does not go on without rank {dying.rank}" if dying.rank else KEEPER
        raise ValueError(f"rank: {why}; {who}")
    most = steps(settings) * ask_strategy(settings, "most_steps")
    if dying.step >= most:
        raise ValueError(f"step: {dying.step}, but no rank of this training takes more than {most} steps")
