"""``hpcdl list``: what a suite can name."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hpcdl.arguments import chosen
from hpcdl.exit_codes import OK
from hpcdl.launch.catalogue import SUBJECTS, USUAL_BATCH, catalogue, described, settings


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("list", help="what a suite can name", description="List what a suite can name.")
    parser.add_argument("what", nargs="?", type=_subject, metavar="WHAT", help=", ".join(SUBJECTS))
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--batch",
        type=_batches,
        metavar="N,...",
        help="weigh models for these many images a step: parameters, |W|, |D|, arithmetic, activations",
    )
    parser.set_defaults(command=execute)


def _subject(word: str) -> str:
    return chosen(word, SUBJECTS)


def _batches(text: str) -> list[int]:
    """Read ``256,1024``."""
    try:
        batches = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between them") from None
    if min(batches) < 1:
        raise argparse.ArgumentTypeError(f"{min(batches)} is less than 1")
    return batches


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.suite import UsageError

    if options.batch and options.what != "models":
        raise UsageError("--batch: goes with models only")
    subjects = [options.what] if options.what else list(SUBJECTS)
    batches = options.batch or [USUAL_BATCH]
    found: dict[str, list[dict[str, Any]]] = {what: catalogue(what, batches) for what in subjects}
    if options.json:
        print(json.dumps({"schema": 1, **found}, indent=1))
        return OK
    for what, entries in found.items():
        print(f"{what}:")
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            print(f"  {entry['name']:{width}}  {described(entry, weighed=bool(options.batch))}")
            if options.what and not options.batch and (line := settings(entry)):
                print(f"  {'':{width}}  {line}")
    return OK
