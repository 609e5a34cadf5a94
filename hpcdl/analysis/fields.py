"""Names of a record's fields, and which of them say that two cases may be compared across ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

SCHEME: Final = ("aggregation", "compression")
"""What differs between a case and its no-communication ceiling."""

CONFIGURATION: Final = (
    *("suite", "kind", "model", "dataset", "backend", "dtype", "training", "optimizer", "schedule"),
    *("learning_rate", "threads_per_rank", "scaling", "epochs", "target_accuracy", "collective"),
    *("message_bytes", "configuration"),
)
"""Two cases that agree in these, in the scheme and in the batch are one case at different scales."""

ANY: Final = "any"
"""In the place of an aggregation: it makes no difference."""

Key = tuple[Any, ...]


def scaling_of(fields: Mapping[str, Any]) -> str | None:
    """``"strong"``, ``"weak"`` or None: the field, or what the batch that is given implies."""
    if fields.get("scaling") is not None:
        return str(fields["scaling"])
    if fields.get("batch_per_rank") is not None:
        return "weak"
    return "strong" if fields.get("global_batch") is not None else None


def problem(fields: Mapping[str, Any]) -> Key:
    """What is computed, whatever combines the gradients: equal for a case and its ceiling.

    Of the two batches the one that stays is in it: the global one in strong scaling, the ranks' in weak. Of
    the two lengths the one that was given: epochs, else the steps that were planned.
    """
    batch = {"strong": "global_batch", "weak": "batch_per_rank"}.get(scaling_of(fields) or "")
    return (
        *(fields.get(name) for name in CONFIGURATION),
        planned_steps(fields),
        scaling_of(fields),
        fields.get(batch or ""),
    )


def planned_steps(fields: Mapping[str, Any]) -> int | None:
    """Steps the case was to take, None where epochs say how long it is.

    A record's ``steps`` are those that were taken, fewer when it stopped at its target.
    """
    if fields.get("epochs") is not None:
        return None
    return fields["planned_steps"] if "planned_steps" in fields else fields.get("steps")


def scheme(fields: Mapping[str, Any]) -> Key:
    """Aggregation and compression: what combines the gradients.

    One rank exchanges nothing, so that every aggregation is the same program there; a compressor may still
    cost time and lose digits.
    """
    aggregation, compression = (fields.get(name) or "none" for name in SCHEME)
    return (ANY if fields.get("ranks") == 1 else aggregation, compression)


def configuration(fields: Mapping[str, Any]) -> Key:
    """Everything but ranks, nodes, seed and launch."""
    return (problem(fields), *(fields.get(name) or "none" for name in SCHEME))
