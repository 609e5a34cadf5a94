"""Conditions of a case: its settings, as the record holds them, that must agree where cases are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final


def label(value: Any) -> str:
    """Return how a value is written in names and tables: ``ring``, ``tree(arity=4)``, ``0.1``."""
    if not isinstance(value, dict):
        return str(value)
    inside = ",".join(f"{key}={label(inner)}" for key, inner in value.items() if key != "name")
    name = str(value.get("name", ""))
    return f"{name}({inside})" if inside else name


def parts(label: str) -> tuple[str, dict[str, str]]:
    """Return the name and the text of each setting; a setting may be a name with settings itself.

    Text of another form is a name without settings.
    """
    name, opened, inside = label.partition("(")
    if not opened or not inside.endswith(")"):
        return label, {}
    settings = [setting.partition("=") for setting in _split(inside[:-1])]
    if not all(equals for _, equals, _ in settings):
        return label, {}
    return name, {key.strip(): value for key, _, value in settings}


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


CONTRACT: Final = (
    *("suite", "case", "kind", "model", "dataset", "backend", "dtype", "training", "aggregation", "compression"),
    *("optimizer", "ranks", "nodes", "threads_per_rank", "global_batch", "scaling", "steps", "step_seconds"),
    *("step_seconds_low", "step_seconds_high", "images_per_second", "speedup", "efficiency", "efficiency_low"),
    *("efficiency_high", "compute_seconds", "input_seconds", "exposed_communication_seconds"),
    *("waiting_seconds", "transfer_seconds", "late_rank"),
    *("bytes_sent_per_rank", "messages_per_rank", "compression_ratio", "staleness_mean", "staleness_max"),
    *("final_loss", "final_accuracy", "target_accuracy", "seconds_to_target", "samples_to_target"),
    "epochs_to_target",
    *("collective", "message_bytes", "time_p50_seconds", "time_p99_seconds", "algbw_bytes_per_second"),
    *("busbw_bytes_per_second", "correct", "predicted_seconds"),
)
"""Fields of ``--json``, in its order."""

METHOD: Final = (
    *("training", "parallelism", "aggregation", "compression", "optimizer", "schedule", "learning_rate", "tuning"),
)
"""Fields that may differ between two rows of a table."""

PROBLEM: Final = (
    *("suite", "kind", "model", "dataset", "backend", "dtype", "threads_per_rank", "scaling", "epochs"),
    *("target_accuracy", "collective", "message_bytes"),
)
"""Two cases that agree in these, in conditions, method and batch are one case at different scales."""

TRAININGS: Final = ("train", "replay")
"""Kinds of case whose steps are those of a training; in a replay only times and messages are."""

ANY: Final = "any"
"""In the place of an aggregation: it makes no difference."""

OWN: Final = "own"
"""In the place of an aggregation: the strategy moves its messages itself."""

Key = tuple[Any, ...]


def scaling_of(fields: Mapping[str, Any]) -> str | None:
    """``"strong"``, ``"weak"`` or None: the field, else as the given batch implies."""
    if fields.get("scaling") is not None:
        return str(fields["scaling"])
    if fields.get("batch_per_rank") is not None:
        return "weak"
    return "strong" if fields.get("global_batch") is not None else None


def problem(fields: Mapping[str, Any], *ignored: str) -> Key:
    """Return the problem, whatever the method: equal for all cases of one table.

    Of the two batches the one that stays is in it: the global one in strong scaling, the ranks' in weak. Of
    the two lengths the one that was given: epochs, else the steps that were planned. ``ignored``: settings that
    may differ.
    """
    kept = {"strong": "global_batch", "weak": "batch_per_rank"}.get(scaling_of(fields) or "")
    return (
        *(fields.get(name) for name in PROBLEM),
        planned_steps(fields),
        scaling_of(fields),
        fields.get(kept or ""),
        conditions(fields, *ignored),
    )


def planned_steps(fields: Mapping[str, Any]) -> int | None:
    """Steps the case was to take, None where epochs say how long it is.

    A record's ``steps`` are those that were taken, fewer when it stopped at its target.
    """
    if fields.get("epochs") is not None:
        return None
    return fields["planned_steps"] if "planned_steps" in fields else fields.get("steps")


def method(fields: Mapping[str, Any]) -> Key:
    """Return the method: strategy, parallelism, aggregation, compression, optimizer, schedule and rate.

    One rank exchanges nothing, so that every aggregation is the same program there; a compressor may still
    cost time and lose digits.
    """
    named = {name: fields.get(name) or "none" for name in METHOD}
    if fields.get("ranks") == 1 and named["aggregation"] != OWN:
        named["aggregation"] = ANY
    return tuple(named.values())


def configuration(fields: Mapping[str, Any], *ignored: str) -> Key:
    """Everything but ranks, nodes, seed and launch, and the settings that are ``ignored``."""
    sampling = tuple((key, label(settings(fields).get(key))) for key in sorted(SAMPLING))
    return (problem(fields, *ignored), sampling, *(fields.get(name) or "none" for name in METHOD))


def strategy(fields: Mapping[str, Any]) -> str:
    """The name of the strategy, without its settings; empty where there is none."""
    return parts(str(fields.get("training") or ""))[0]


def is_independent(fields: Mapping[str, Any]) -> bool:
    """Return True if ranks exchange nothing, so that replicas are independent."""
    return bool(fields.get("independent"))


def keeps_step(fields: Mapping[str, Any]) -> bool:
    """Return True if ranks take every step together, so that the slowest of them determines its time.

    The time per step of other strategies takes many steps: see :mod:`hpcdl.analysis.run.launches`.
    """
    return fields.get("lockstep") is not False


def batch(fields: Mapping[str, Any]) -> float | None:
    """Return the images of a global batch; None if unknown."""
    if fields.get("global_batch") is not None:
        return float(fields["global_batch"])
    if fields.get("batch_per_rank") is not None:
        return float(fields["batch_per_rank"]) * int(fields.get("ranks") or 1)
    return None


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
        ),
        *(
            "mesh",
            "schedule",
            "learning_rate",
            "tune",
            "ranks",
            "global_batch",
            "batch_per_rank",
            "epochs",
            "steps",
        ),
        *("seed", "target_accuracy", "collective", "message_bytes", "exchange", "pattern"),
    )
)
"""Settings that other fields of the record state."""

SAMPLING: Final = frozenset(("repetitions", "warmup", "evaluate_every", "stop_at_target", "sharpness"))
"""Settings of measurements, which change no time."""

_SIMULATED: Final = frozenset(("network", "topology", "ranks_per_host", "jitter"))
_TIMES: Final = frozenset(("device", "flops", "times", "time_scale"))


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
    given, subjects = settings(fields), dict[str, str]()
    if fields.get("network"):
        parts = [f"simulated on {fields['network']}", f"{given.get('ranks_per_host', 1)} a host", _times(given)]
        parts[1:1] = [label(given["topology"])] if given.get("topology") else []
        parts += [f"jitter {_number(given['jitter'])}"] if given.get("jitter") else []
        subjects["simulated"] = ", ".join(filter(None, parts))
    elif times := _times(given):
        scale = f" x {_number(given['time_scale'])}" if "time_scale" in given else ""
        subjects["replayed"] = f"replayed with {times}{scale}"
    for name in ("shares", "straggler", "failure"):
        if fields.get(name):
            subjects[name] = str(fields[name]) if name == "straggler" else f"{name} {fields[name]}"
    others = dict(conditions(fields, *_SIMULATED, *_TIMES, *subjects))
    return subjects | {key: f"{key}={value}" for key, value in others.items()}


def _times(given: Mapping[str, Any]) -> str:
    """Return where the times of the work are from; empty where it is measured."""
    if given.get("flops"):
        return f"{_number(given['flops'])} FLOP/s"
    source = given.get("times") or given.get("device")
    return f"{source}'s times" if source else ""


def _number(value: Any) -> str:
    """Return a number in short; a record of another program may have anything in its place."""
    return f"{value:g}" if isinstance(value, (int, float)) else label(value)
