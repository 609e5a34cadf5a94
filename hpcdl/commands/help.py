"""``hpcdl help``: the pages of hpcdl/docs, one for each activity."""

import argparse
from pathlib import Path
from typing import Final

from hpcdl.commands.parts.options import Arguments, Command, chosen
from hpcdl.exit_codes import OK

PACKAGE: Final = Path(__file__).parents[1]
BESIDE_THEIR_SUBJECT: Final = {"suites": "suites", "columns": "report", "hdf5": "trace"}
"""Folders whose README.md is a page: keys of suites, columns of CSV and JSON, the file of a run."""


def pages() -> dict[str, Path]:
    """Return the file of each topic."""
    of_docs = {file.stem: file for file in sorted((PACKAGE / "docs").glob("*.md"))}
    return of_docs | {topic: PACKAGE / folder / "README.md" for topic, folder in BESIDE_THEIR_SUBJECT.items()}


def arguments(parser: Arguments) -> None:
    parser.option("topic TOPIC", "a page; without it a list of them", nargs="?", type=_topic)


def _topic(word: str) -> str:
    return chosen(word, list(pages()))  # only now: every rank declares the arguments, and need not read the folder


def execute(options: argparse.Namespace) -> int:
    """Print a page, or the questions that each page answers."""
    if options.topic is not None:
        print(pages()[options.topic].read_text(encoding="utf-8"), end="")
        return OK
    for topic, file in pages().items():
        lines = file.read_text(encoding="utf-8").splitlines()
        title, *questions = (line.lstrip("# ") for line in lines if line.startswith(("# ", "## ")))
        print(f"{topic:12} {title}")
        for question in (question for question in questions if question.endswith("?")):
            print(f"{'':12} - {question}")
    return OK


COMMAND: Final = Command(
    5,
    "pages on each activity",
    "Print a page of the documentation. Without TOPIC: all pages, with the questions that they answer.",
    "hpcdl help nightly",
)
