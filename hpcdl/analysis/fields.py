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
    *("efficiency_high", "compute_seconds", "exposed_communication_seconds", "bytes_sent_per_rank"),
    *("messages_per_rank", "compression_ratio", "staleness_mean", "staleness_max", "final_loss"),
    *("final_accuracy", "target_accuracy", "seconds_to_target", "samples_to_target", "epochs_to_target"),
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

    Of the two batches the one that stays is in it: the global one in strong scaling, the ranks' in weak.
    """
    batch = {"strong": "global_batch", "weak": "batch_per_rank"}.get(scaling_of(fields) or "")
    return (*(fields.get(name) for name in CONFIGURATION), scaling_of(fields), fields.get(batch or ""))


def configuration(fields: Mapping[str, Any]) -> Key:
    """Everything but ranks, nodes, seed and launch."""
    return (problem(fields), *(fields.get(name) or "none" for name in SCHEME))
