"""Fault injection for training cases: checks of stragglers and process failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.cases.parts.keys import about

if TYPE_CHECKING:
    from hpcdl.cases.parts.train_spec import TrainSpec
    from hpcdl.fabric.faults import Failure, Straggler

KEEPER: Final = "rank 0 keeps the record and cannot fail"


def check(spec: TrainSpec) -> None:
    """Raise ValueError, led by its key, for a fault that cannot happen, ends the training or changes nothing."""
    if spec.straggler is not None:
        with about("straggler"):
            _check_rank(spec.straggler.rank, spec.ranks)
            _check_pauses(spec.straggler, spec.workers)
    if spec.failure is not None:
        with about("failure"):
            _check_rank(spec.failure.rank, spec.ranks)
            _check_failure(spec.failure, spec)


def _check_rank(rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not among the {ranks} ranks of the case")


def _check_pauses(straggler: Straggler, workers: range) -> None:
    rank = straggler.rank
    if straggler.probability and rank not in workers:
        able = f"these have: {workers[0]} to {workers[-1]}"
        raise ValueError(f"rank: rank {rank} has no batches to pause before; {able}")


def _check_failure(failure: Failure, spec: TrainSpec) -> None:
    name, traits, settings = spec.training.name, spec.strategy, spec.training.in_full
    may_fail = traits.may_fail(spec.ranks, settings) if traits.may_fail else range(0)
    others = may_fail[1:] if 0 in may_fail else may_fail
    if failure.rank not in others:
        able = f"these may fail: {others[0]} to {others[-1]}" if others else "with such settings none may fail"
        why = f"{name!r} does not go on without rank {failure.rank}" if failure.rank else KEEPER
        raise ValueError(f"rank: {why}; {able}")
    most = spec.planned_steps * traits.most_steps(spec.ranks, settings)
    if failure.step >= most:
        raise ValueError(f"step: {failure.step}, but no rank of this training takes more than {most} steps")
