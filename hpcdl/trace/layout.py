"""Schema of a trace: columns of its tables, fields of a case, environment; and checks of JSON."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from hpcdl.trace.recorder import EVALUATION, EVENT, RESIDUAL, STEP, UPDATE

if TYPE_CHECKING:
    from collections.abc import Iterable


SCHEMA: Final = 5

RANK: Final = np.dtype(
    [
        ("rank", np.int32),
        ("dropped", np.int64),
        ("dropped_updates", np.int64),
        ("clock_offset_ns", np.int64),
        ("memory_bytes", np.int64),
        # of the rank's process and cores during the case; -1: unknown
        ("wall_ns", np.int64),
        ("cpu_ns", np.int64),
        ("busy_ns", np.int64),
        ("foreign_ns", np.int64),
        ("foreign_error_ns", np.int64),
        ("idle_cores", np.int32),
        ("steal_ns", np.int64),
        ("involuntary_switches", np.int64),
        ("load", np.float64),
        ("frequency_begin_khz", np.int64),
        ("frequency_end_khz", np.int64),
        ("retransmissions", np.int64),
    ]
)


def _of_ranks(columns: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype([("rank", np.int32), *columns.descr])


TABLES: Final = {
    "steps": _of_ranks(STEP),
    "events": _of_ranks(EVENT),
    "evaluations": _of_ranks(EVALUATION),
    "updates": _of_ranks(UPDATE),
    "ranks": RANK,
}
"""Columns of each dataset, by name."""

OPTIONAL: Final = {"residuals": _of_ranks(RESIDUAL)}
"""Columns of datasets that a case has only if there are rows."""

REQUIRED: Final = ("kind", "ranks")
"""Fields that every case must have."""

_TEXTS: Final = (
    *("suite", "case", "kind", "digest", "model", "dataset", "backend", "dtype", "training", "aggregation"),
    *("compression", "optimizer", "schedule", "collective", "settings", "image_shape", "network", "system"),
    *(
        "straggler",
        "failure",
        "process_failure",
        "error",
        "shares",
        "parallelism",
        "chosen",
        "dataset_source",
        "dataset_digest",
        "pattern",
        "tuned",
    ),
    *("start", "placement", "device", "times", "environment_key"),
)
_COUNTS: Final = (
    *("ranks", "nodes", "threads_per_rank", "global_batch", "batch_per_rank", "steps", "planned_steps"),
    *("warmup_steps", "warmup", "message_bytes", "seed", "launch", "parameters", "bucket_bytes"),
    *("residual_bytes", "ranks_per_host", "straggler_rank", "tuning", "tuning_images"),
)
_NUMBERS: Final = (
    *("learning_rate", "epochs", "target_accuracy", "predicted_seconds", "compression_ratio", "staleness_mean"),
    *(
        "staleness_max",
        "jitter",
        "encode_seconds",
        "decode_seconds",
        "bits_per_entry",
        "entropy_bits_per_entry",
        "flops",
        "time_scale",
        "modelled_compute_seconds",
        "straggler_factor",
    ),
    *(
        "straggler_pause_seconds",
        "straggler_pause_share",
        "start_error_seconds",
        "starts_late",
        "clock_error_seconds",
        "test_loss",
        "test_accuracy",
        *(f"noise_scale_q{quarter}" for quarter in range(1, 5)),
        "replica_drift",
    ),
)
FIELDS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(_NUMBERS, (int, float)),
    "correct": (bool,),
    "scale_to_batch": (bool,),
    "scaling": (str,),
}
"""Types of the fields that the analysis reads; all except the required ones may be None."""

CHOICES: Final = {"scaling": ("strong", "weak"), "pattern": ("pair", "all_pairs", "bisection")}
"""Allowed values of fields with a fixed set of values."""

IMPLIED: Final = {
    "collective": ("message_bytes",),
    "pattern": ("message_bytes",),
    "straggler_factor": ("straggler_pause_seconds", "straggler_pause_share"),
    "start_error_seconds": ("starts_late",),
}
"""Fields that become required when another field is present."""


class Complete(dict[str, object]):
    """A table in which all keys are required."""


UNKNOWN: Final = "unknown"
_NUMBER: Final = (int, float, UNKNOWN)
_CARDS: Final = ({"*": {"driver": str, "rate": str, "state": str}}, UNKNOWN)
_COUNTERS: Final = {"*": ({"*": (int, UNKNOWN, {"*": (int, UNKNOWN)})}, UNKNOWN)}
_PROCESS: Final = {
    "hostname": str,
    "slurm_node": str,
    "slurm_topology": str,
    "affinity": re.compile(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?"),
}

ENVIRONMENT: Final = {
    **dict.fromkeys(("date", "hostname", "kernel", "system", "clocksource"), str),
    "key": re.compile(r"[0-9a-z]{1,64}"),
    "command": [str],
    "mpi": ({"library": str, "version": str, "nodes": int}, UNKNOWN),
    "emulated": (None, Complete({"hosts": int, "rate": str, "slow": {"*": str}, "bytes_per_second": {"*": int}})),
    "libraries": ({"*": [str]}, UNKNOWN),
    "variables": {"*": str},
    "cpu": {"model": str, "physical_cores": _NUMBER, "smt": str, "governor": str, "quota_cores": _NUMBER},
    "memory_bytes": (int, UNKNOWN),
    "network": _CARDS,
    "infiniband": _CARDS,
    "gpu": ({"driver": str, "devices": [{"name": str}]}, UNKNOWN),
    "software": {"*": str},
    "git": ({"commit": str, "changed_files": int}, UNKNOWN),
    "timer": {"implementation": str},
    "counters": _COUNTERS,
    "counters_after": _COUNTERS,
    "ranks": [_PROCESS],
    "failed_cases": [{"case": str, "rank": (int, None), "error": str}],
    "cases_not_run": [{"case": str, "error": str}],
}
"""Schema of the environment's description.

A schema is a type; a pattern of a text; a literal text or None; a tuple of alternatives; a list with the schema of
its items; or a table. Keys of a table are optional unless it is :class:`Complete`; "*" means all keys. Keys
that are not listed may have any value.
"""


MAX_COUNTER: Final = 1 << 65
"""Limit of numbers of an environment: counters of network cards have 64 bits."""
Record = TypeVar("Record")


def from_json(kind: type[Record], value: Any) -> Record:
    """Return ``value``, parsed JSON, as the dataclass ``kind``. Raises ValueError, which names the place."""
    return _converted(kind, value, kind.__name__)  # type: ignore[no-any-return]


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _converted(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return value
    if isinstance(kind, UnionType):
        inner = [member for member in get_args(kind) if member is not type(None)]
        return None if value is None and len(inner) < len(get_args(kind)) else _converted(inner[0], value, place)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is dict and isinstance(value, dict):
        return {key: _converted(inside[1], item, f"{place}.{key}") for key, item in value.items()}
    if origin in {tuple, list} and isinstance(value, list):
        return origin(_converted(inside[0], item, f"{place}[{number}]") for number, item in enumerate(value))
    if is_dataclass(kind) and isinstance(value, dict):
        types = _hints(kind)  # type: ignore[arg-type]
        required = {field.name for field in fields(kind) if field.default is MISSING}
        if required <= value.keys() <= types.keys():
            return kind(
                **{  # type: ignore[operator]
                    key: _converted(types[key], item, f"{place}.{key}") for key, item in value.items()
                }
            )
    elif origin is None and (type(value) is kind or (kind is float and type(value) is int)):
        return value
    raise ValueError(f"{place}: not a {getattr(kind, '__name__', kind)}")


def misfit(value: Any, shape: Any, place: str) -> str | None:
    """Return the first place in ``value`` that violates the schema ``shape``; None if it is valid."""
    if isinstance(shape, tuple):
        misfits = [misfit(value, alternative, place) for alternative in shape]
        return None if None in misfits else max(filter(None, misfits), key=len)
    if isinstance(shape, dict):
        if not isinstance(value, dict) or (isinstance(shape, Complete) and shape.keys() - value.keys()):
            return place
        inside = [(key, item, shape.get(key, shape.get("*"))) for key, item in value.items()]
        return _first(misfit(item, its, f"{place}.{key}") for key, item, its in inside if its is not None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        return _first(misfit(item, shape[0], f"{place}[{number}]") for number, item in enumerate(value))
    if isinstance(shape, re.Pattern):
        fits = isinstance(value, str) and shape.fullmatch(value) is not None
    elif isinstance(shape, type):
        fits = isinstance(value, shape) and not isinstance(value, bool)
        fits = fits and (isinstance(value, str) or abs(value) < MAX_COUNTER)
    else:
        fits = value == shape
    return None if fits else place


def _first(misfits: Iterable[str | None]) -> str | None:
    return next(filter(None, misfits), None)
