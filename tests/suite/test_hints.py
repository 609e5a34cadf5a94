"""Hints in messages and documents name pages, subjects, extras and files that exist."""

import ast
import re
import tomllib
from pathlib import Path

from hpcdl.commands.help import BESIDE_THEIR_SUBJECT, pages
from hpcdl.commands.list import SUBJECTS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / "hpcdl").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "suites/README.md", "slurm/README.md")),
]
PLACE = r"(?<![\w/~.$])(?:hpcdl|suites|slurm|reports|tests)/[\w./-]+\.(?:md|toml|py)\b"
"""A file of the source."""


def messages(file):
    """Return the texts of a module that are no docstrings: a string, or the constant parts of a format string."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented)
    return [node.value for node in constants if isinstance(node.value, str)]


def test_what_a_hint_names_is_there():
    texts = [(file, text) for file in (ROOT / "hpcdl").rglob("*.py") for text in messages(file)]
    texts += [(file, file.read_text(encoding="utf-8")) for file in DOCUMENTS]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    seen = set()
    for file, text in texts:
        for command, name in re.findall(r"\bhpcdl (help|list) ([\w-]+)", text):
            assert name in (*(pages() if command == "help" else SUBJECTS), "TOPIC", "SUBJECT"), (
                file,
                command,
                name,
            )
            seen.add(command)
        for place, names in re.findall(r"(?:pip install|, or) '([\w.]*)\[([\w,-]+)\]'", text):
            # of an installed package, in any folder; README installs the folder of the source
            assert place == "hpcdl" or file.name == "README.md", (file, place)
            assert set(names.split(",")) <= set(extras), (file, names)
            seen.add("pip")
        for path in re.findall(PLACE, text):
            assert path == text or (ROOT / path).exists(), (file, path)
            seen.add("path")
    assert seen == {"help", "list", "pip", "path"}


def test_a_file_that_is_a_page_is_named_by_its_topic():
    """An installed package has no ``suites/README.md``, but ``hpcdl help suites``."""
    files = [
        f"{folder if folder == 'suites' else f'hpcdl/{folder}'}/README.md"
        for folder in BESIDE_THEIR_SUBJECT.values()
    ]
    texts = [text for file in (ROOT / "hpcdl").rglob("*.py") for text in messages(file)]
    texts += [file.read_text(encoding="utf-8") for file in pages().values()]
    assert not [path for path in files for text in texts if path in text]
