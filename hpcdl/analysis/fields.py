"""Names of a record's fields: which of them say what is to be learned, and which by what method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.labels import parts

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTRACT: Final = (
    *(
        "suite",
        "case",
        "kind",
        "model",
        "dataset",
        "backend",
        "dtype",
        "training",
        "aggregation",
        "compression",
    ),
    *("optimizer", "ranks", "nodes", "threads_per_rank", "global_batch", "scaling", "steps", "step_seconds"),
    *(
        "step_seconds_low",
        "step_seconds_high",
        "images_per_second",
        "speedup",
        "efficiency",
        "efficiency_low",
    ),
    *("efficiency_high", "compute_seconds", "input_seconds", "exposed_communication_seconds"),
    *("bytes_sent_per_rank", "messages_per_rank", "compression_ratio", "staleness_mean", "staleness_max"),
    *("final_loss", "final_accuracy", "target_accuracy", "seconds_to_target", "samples_to_target"),
    "epochs_to_target",
    *("collective", "message_bytes", "time_p50_seconds", "time_p99_seconds", "algbw_bytes_per_second"),
    *("busbw_bytes_per_second", "correct", "predicted_seconds"),
)
"""What ``--json`` promises, in its order."""

METHOD: Final = ("training", "aggregation", "compression", "optimizer", "schedule", "learning_rate")
"""What may differ between two cases that stand side by side in a table."""

PROBLEM: Final = (
    *("suite", "kind", "model", "dataset", "backend", "dtype", "threads_per_rank", "scaling", "epochs"),
    *("target_accuracy", "collective", "message_bytes", "configuration"),
)
"""Two cases that agree in these, in the method and in the batch are one case at different scales."""

TRAININGS: Final = ("train", "replay")
"""Kinds of case whose steps are those of a training; in a replay only times and messages are."""

LOCKSTEP: Final = ("synchronous", "layerwise")
"""Strategies in which all ranks take every step together and one step costs what the next one does.

What others cost shows over many steps only: see :mod:`hpcdl.analysis.pace`.
"""

ANY: Final = "any"
"""In the place of an aggregation: it makes no difference."""

OWN: Final = "own"
"""In the place of an aggregation: the strategy moves its messages itself."""

TRACE: Final = "trace="
"""How the part of ``configuration`` begins that says what was traced."""

Key = tuple[Any, ...]


def scaling_of(fields: Mapping[str, Any]) -> str | None:
    """``"strong"``, ``"weak"`` or None: the field, or what the batch that is given implies."""
    if fields.get("scaling") is not None:
        return str(fields["scaling"])
    if fields.get("batch_per_rank") is not None:
        return "weak"
    return "strong" if fields.get("global_batch") is not None else None


def problem(fields: Mapping[str, Any]) -> Key:
    """What is to be learned from what, on what machine, whatever the method: equal for all cases of one table.

    Of the two batches the one that stays is in it: the global one in strong scaling, the ranks' in weak. Of
    the two lengths the one that was given: epochs, else the steps that were planned.
    """
    kept = {"strong": "global_batch", "weak": "batch_per_rank"}.get(scaling_of(fields) or "")
    return (
        *(fields.get(name) for name in PROBLEM),
        planned_steps(fields),
        scaling_of(fields),
        fields.get(kept or ""),
    )


def planned_steps(fields: Mapping[str, Any]) -> int | None:
    """Steps the case was to take, None where epochs say how long it is.

    A record's ``steps`` are those that were taken, fewer when it stopped at its target.
    """
    if fields.get("epochs") is not None:
        return None
    return fields["planned_steps"] if "planned_steps" in fields else fields.get("steps")


def method(fields: Mapping[str, Any]) -> Key:
    """How the problem is solved: strategy, aggregation, compression, optimizer, schedule and rate.

    One rank exchanges nothing, so that every aggregation is the same program there; a compressor may still
    cost time and lose digits.
    """
    named = {name: fields.get(name) or "none" for name in METHOD}
    if fields.get("ranks") == 1 and named["aggregation"] != OWN:
        named["aggregation"] = ANY
    return tuple(named.values())


def configuration(fields: Mapping[str, Any]) -> Key:
    """Everything but ranks, nodes, seed and launch."""
    return (problem(fields), *(fields.get(name) or "none" for name in METHOD))


def setting(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of ``configuration`` that change what is measured: all but what was traced."""
    said = str(fields.get("configuration") or "").split(", ")
    return tuple(part for part in said if part and not part.startswith(TRACE))


def strategy(fields: Mapping[str, Any]) -> str:
    """The name of the strategy, without its settings; empty where there is none."""
    return parts(str(fields.get("training") or ""))[0]


def keeps_step(fields: Mapping[str, Any]) -> bool:
    """Whether all ranks take every step together, so that the slowest of them says how long it takes."""
    return strategy(fields) in {"", *LOCKSTEP}


def batch(fields: Mapping[str, Any]) -> float | None:
    """Images of a global batch by what the case says."""
    if fields.get("global_batch") is not None:
        return float(fields["global_batch"])
    if fields.get("batch_per_rank") is not None:
        return float(fields["batch_per_rank"]) * int(fields.get("ranks") or 1)
    return None
