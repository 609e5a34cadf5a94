"""``hpcdl list``: names that a suite can use."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from hpcdl.commands.parts.parser import Command, chosen, whole_number
from hpcdl.exit_codes import OK

SUBJECTS: Final = (
    *("aggregation", "compression", "codes", "optimizers", "schedules", "training", "models", "datasets"),
    *("networks", "suites"),
)
MOST_IMAGES: Final = 10**9
"""Largest batch."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments and options."""
    parser.add_argument("subject", nargs="?", type=_subject, metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--batch",
        type=_batches,
        metavar="N,...",
        help="with models: weight bytes |W|, data bytes |D|, FLOP and activations of a step on N images",
    )
    parser.add_argument(
        "--layers", action="store_true", help="with models: |W|, |D| and FLOP of each layer with parameters"
    )


def _subject(word: str) -> str:
    """Return the subject that ``word`` names; a key of a suite, such as ``optimizer``, names one too."""
    plural = "optimizers" if word == "optim" else f"{word}s"
    return plural if plural in SUBJECTS else chosen(word, SUBJECTS)


def _batches(text: str) -> list[int]:
    """Read ``256,1024``."""
    batches = [whole_number(part) for part in text.split(",")]
    for batch in batches:
        if not 1 <= batch <= MOST_IMAGES:
            raise argparse.ArgumentTypeError(f"{batch} is not from 1 to {MOST_IMAGES}")
    return batches


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.commands.parts.listing import USUAL_BATCH, catalogue, described, layer_lines, settings
    from hpcdl.suite import UsageError

    if options.batch and options.subject != "models":
        raise UsageError("--batch: only for `hpcdl list models`")
    if options.layers and options.subject != "models":
        raise UsageError("--layers: only for `hpcdl list models`")
    subjects = [options.subject] if options.subject else list(SUBJECTS)
    batches = options.batch or [USUAL_BATCH]
    catalogues: dict[str, list[dict[str, Any]]] = {
        subject: catalogue(subject, batches, layers=options.layers) for subject in subjects
    }
    if options.json:
        print(json.dumps({"schema": 1, **catalogues}, indent=1))
        return OK
    for subject, entries in catalogues.items():
        print(f"{subject}:")
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            print(f"  {entry['name']:{width}}  {described(entry, volumes=bool(options.batch or options.layers))}")
            for line in layer_lines(entry):
                print(f"  {'':{width}}  {line}")
            if options.subject and not (options.batch or options.layers) and (line := settings(entry)):
                print(f"  {'':{width}}  {line}")
    return OK


COMMAND: Final = Command(
    40,
    "list names that a suite can use",
    "List the names that a suite can use; with SUBJECT, also their settings and defaults.",
    arguments,
    execute,
    "hpcdl list aggregation",
)
