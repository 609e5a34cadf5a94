"""Log lines of MLPerf for training cases, which mlperf_logging's parser reads.

Each launch of a training case is one run: ``run_start``, an ``eval_accuracy`` per evaluation, ``run_stop``. Times
are of the training, without evaluations, and begin at the date of the run (ms since 1970).
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcdl.report.run.findings import Findings
    from hpcdl.trace.run import Run

SETTINGS = {
    "submission_benchmark": "model",
    "global_batch_size": "global_batch",
    "seed": "seed",
    "opt_name": "optimizer",
    "opt_base_learning_rate": "learning_rate",
    "target_accuracy": "target_accuracy",
}
"""Key of a log line by the field of a case."""


def render(runs: Sequence[Findings]) -> str:
    """Return the lines of all training cases of all runs."""
    return "".join(line for findings in runs for line in _lines(findings.run))


def _lines(run: Run) -> Iterator[str]:
    date = run.environment.get("date")
    begin = dt.datetime.fromisoformat(str(date)).timestamp() if date else 0.0
    for index, fields in enumerate(run.described):
        tests = run.evaluations[run.evaluations["case_index"] == index]
        if fields.get("kind") != "train" or tests.empty:
            continue
        tests = tests[tests["rank"] == tests["rank"].min()]
        case = {"case": fields.get("case"), "ranks": fields.get("ranks"), "launch": fields.get("launch", 1)}
        for key, field in SETTINGS.items():
            if fields.get(field) is not None:
                yield _line(begin, key, fields[field], case)
        yield _line(begin, "run_start", None, case, "INTERVAL_START")
        for row in tests.itertuples():
            about = {**case, "epoch_num": float(row.epoch), "samples_count": int(row.samples)}
            yield _line(begin + float(row.training_seconds), "eval_accuracy", float(row.accuracy), about)
        target = fields.get("target_accuracy")
        reached = target is not None and float(tests["accuracy"].max()) >= float(target)
        status = {"status": "success" if target is None or reached else "aborted"}
        end = begin + float(tests["training_seconds"].max())
        yield _line(end, "run_stop", None, {**case, **status}, "INTERVAL_END")


def _line(seconds: float, key: str, value: Any, about: Mapping[str, Any], event: str = "POINT_IN_TIME") -> str:
    record = {
        "namespace": "",
        "time_ms": round(seconds * 1e3),
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": "hpcdl", "lineno": 0, **about},
    }
    return f":::MLLOG {json.dumps(record)}\n"
