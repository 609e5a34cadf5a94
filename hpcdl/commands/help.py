"""``hpcdl help``: the pages of hpcdl/docs, one for each activity."""

import argparse
import re
import sys
from importlib.util import find_spec
from typing import Final

from hpcdl.commands.parts.options import Arguments, Command
from hpcdl.commands.parts.topics import pages, topic_of
from hpcdl.exit_codes import OK

STYLES: Final = {"h1": "bold", "h2": "bold", "h3": "bold", "code": "bold", "item.bullet": "none"}
"""Styles of Rich by the part of a page, without colours, which some background would hide."""


def arguments(parser: Arguments) -> None:
    effect = "a page, or a word such as slurm, nccl or drain; without it a list of pages"
    parser.option("topic TOPIC", effect, nargs="?", type=_topic)


def _topic(word: str) -> str:
    """Return ``word`` if it leads to a page. Raises argparse.ArgumentTypeError that names where to look."""
    from hpcdl.registry import nearest, shortened

    files = pages()  # only now: every rank declares the arguments, and need not read the folder
    if topic_of(word):
        return word
    has = [name for name, file in files.items() if word.casefold() in file.read_text(encoding="utf-8").casefold()]
    hint = f"; pages that have the word: {', '.join(has)}" if has else nearest(word, files)
    raise argparse.ArgumentTypeError(f"unknown {shortened(word)}{hint}")


def execute(options: argparse.Namespace) -> int:
    """Print a page, or the questions that each page answers."""
    files = pages()
    if options.topic is not None:
        topic = topic_of(options.topic)
        if topic != options.topic:
            print(f"hpcdl help {topic}:\n")
        _print(files[topic].read_text(encoding="utf-8"))
        return OK
    for topic, file in files.items():
        lines = file.read_text(encoding="utf-8").splitlines()
        title, *questions = (line.lstrip("# ") for line in lines if line.startswith(("# ", "## ")))
        print(f"{topic:12} {title}")
        for question in (question for question in questions if question.endswith("?")):
            print(f"{'':12} - {question}")
    return OK


def _print(page: str) -> None:
    """Print Markdown: for a terminal in its width by Rich, if that is installed; as it stands elsewhere."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        print(page, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    theme = Theme({f"markdown.{part}": style for part, style in STYLES.items()})
    uncoloured = re.sub(r"^```\w+", "```text", page, flags=re.MULTILINE)
    Console(theme=theme).print(Markdown(uncoloured, code_theme="ansi_light", hyperlinks=False))


COMMAND: Final = Command(
    5,
    "pages on each activity",
    "Print a page of the documentation. Without TOPIC: all pages, with the questions that they answer.",
    "hpcdl help nightly",
)
