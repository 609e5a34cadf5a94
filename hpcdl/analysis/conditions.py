"""Conditions of a case: its settings, as the record holds them, that must agree where cases are compared."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.labels import label

if TYPE_CHECKING:
    from collections.abc import Mapping

STATED: Final = frozenset(
    (
        *(
            "model",
            "dataset",
            "backend",
            "dtype",
            "threads",
            "training",
            "aggregation",
            "compression",
            "optimizer",
            "mesh",
        ),
        *("schedule", "learning_rate", "ranks", "global_batch", "batch_per_rank", "epochs", "steps", "seed"),
        *("target_accuracy", "collective", "message_bytes", "exchange", "pattern"),
    )
)
"""Settings that other fields of the record state."""

SAMPLING: Final = frozenset(("repetitions", "warmup", "evaluate_every", "stop_at_target"))
"""Settings of how often something is measured, which change no time."""

_SIMULATED: Final = frozenset(("network", "ranks_per_host", "jitter"))
_TIMES: Final = frozenset(("device", "flops", "times", "time_scale", "scale_to_batch"))


def settings(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a case that differ from their defaults, by key."""
    return _parsed(str(fields.get("settings") or "{}"))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def conditions(fields: Mapping[str, Any], *ignored: str) -> tuple[tuple[str, str], ...]:
    """Return key and value of each setting that changes the measured numbers and is not a field of the record."""
    left_out = STATED | SAMPLING | set(ignored)
    return tuple((key, label(value)) for key, value in sorted(settings(fields).items()) if key not in left_out)


def words(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the conditions in words, by subject."""
    given, found = settings(fields), dict[str, str]()
    if fields.get("network"):
        parts = [f"simulated on {fields['network']}", f"{given.get('ranks_per_host', 1)} a host", _times(given)]
        parts += [f"jitter {_number(given['jitter'])}"] if given.get("jitter") else []
        found["simulated"] = ", ".join(filter(None, parts))
    elif times := _times(given):
        scale = f" x {_number(given['time_scale'])}" if "time_scale" in given else ""
        scale += " in proportion to the batch" if given.get("scale_to_batch") else ""
        found["replayed"] = f"replayed with {times}{scale}"
    for name in ("shares", "straggler", "failure"):
        if fields.get(name):
            found[name] = f"{name} {fields[name]}"
    others = dict(conditions(fields, *_SIMULATED, *_TIMES, *found))
    return found | {key: f"{key}={value}" for key, value in others.items()}


def _times(given: Mapping[str, Any]) -> str:
    """Return where the times of the work are from; empty where it is measured."""
    if given.get("flops"):
        return f"{_number(given['flops'])} FLOP/s"
    source = given.get("times") or given.get("device")
    return f"{source}'s times" if source else ""


def _number(value: Any) -> str:
    """Return a number in short; a record of another program may have anything in its place."""
    return f"{value:g}" if isinstance(value, (int, float)) else label(value)
