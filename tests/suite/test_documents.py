"""Names in documents and messages exist, and their numbers stand in the reports that they name."""

import ast
import dataclasses
import importlib
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hpcdl import cli, suite
from hpcdl.cli import main
from hpcdl.commands.list import SUBJECTS, catalogue
from hpcdl.commands.parts.topics import BESIDE_THEIR_SUBJECT, pages
from hpcdl.registry import find, names, settings_of

from .tables import REPORT, SCHEMA, schema, with_columns, with_tables

ROOT = Path(__file__).parents[2]
PAGES = [f"hpcdl/docs/{file.name}" for file in sorted((ROOT / "hpcdl/docs").glob("*.md"))]
DOCUMENTS = ("README.md", "suites/README.md", *PAGES)


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def commands(document):
    """Return the command lines in blocks and in running text, without prompts and comments."""
    text = text_of(document)
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line[:2] in {"$ ", "# "}]
    found = [line.partition("  #")[0].strip() for line in lines]
    return found + re.findall(r"`((?:hpcdl|make) [^`]+)`", text)


def test_commands_and_their_options_exist(capsys):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    helps = {}
    for command in cli.commands():
        with pytest.raises(SystemExit):
            main([command, "--help"])
        helps[command] = capsys.readouterr().out
    lines = [line for document in DOCUMENTS for line in commands(document)]
    assert not [line for line in lines if len(line) > 80]
    called = list(map(shlex.split, lines))
    for words in called:
        if words[0] == "make":
            assert words[1] in targets
        while "hpcdl" in words:  # after mpirun, or after hpcdl testbed --
            words = words[words.index("hpcdl") + 1 :]  # noqa: PLW2901
            own = words[: words.index("--")] if "--" in words else words
            assert own[0] in helps, own
            for option in (word for word in own if word.startswith("-")):
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", helps[own[0]]), (own, option)


@pytest.mark.parametrize("topic", ["compression", "datasets", "models", "predict", "training"])
def test_a_page_begins_with_its_command_and_what_that_prints(topic, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "76")
    begin = r"# .*\n\n```console\n\$ hpcdl (.*)\n((?:.*\n){10})\.\.\.\n```\n"
    block = re.match(begin, text_of(f"hpcdl/docs/{topic}.md"))
    assert main(shlex.split(block[1])) == 0
    assert capsys.readouterr().out.startswith(block[2])


def test_suites_that_are_named_exist():
    for document in DOCUMENTS:
        files = re.findall(r"\bsuites/([\w-]+)\.toml|^\| `([\w-]+)\.toml` \|", text_of(document), re.MULTILINE)
        called = map(str.split, commands(document))
        run = [words[2] for words in called if words[:2] == ["hpcdl", "run"] and len(words) > 2]
        named = {one or other for one, other in files} | {word for word in run if re.match(r"[a-z][^.]*$", word)}
        assert named or document in PAGES
        for name in named:
            assert (ROOT / f"suites/{name}.toml").is_file(), name


def test_the_table_of_suites_has_all_of_them_and_what_a_suite_needs_is_said_where_it_is_named():
    needs = {entry["name"]: entry["needs"] for entry in catalogue("suites")}
    assert needs["firecaffe"] == ["fashion_mnist"]
    assert not needs["quickstart"]
    table = re.findall(r"^\| `([\w-]+)\.toml` \|.*\|(.*)\|$", text_of("suites/README.md"), re.MULTILINE)
    assert sorted(name for name, _ in table) == sorted(path.stem for path in (ROOT / "suites").glob("*.toml"))
    for name, cell in table:
        assert re.findall(r"needs `(\w+)`", cell) == needs[name], name
    for document in DOCUMENTS:
        for name, options in re.findall(r"hpcdl (?:run|sbatch) ([a-z][\w-]*)([^`\n]*)", text_of(document)):
            assert not needs.get(name) or "case.dataset=" in options, (document, name)


def test_paths_and_functions_that_are_named_exist():
    text = "\n".join(map(text_of, [*DOCUMENTS, "CONTRIBUTING.md"]))
    for path in re.findall(r"`((?:hpcdl|suites|slurm|reports|tests)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for words, path in re.findall(r"((?:`\w+`(?: and |, )?)+) in `(hpcdl/[\w/]+\.py)`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", words):
            assert re.search(rf"^(?:async )?(?:def|class) {name}\b", source, re.MULTILINE), (name, path)


def test_files_that_the_docstrings_of_rooms_name_exist():
    there = {path.name for folder in ("hpcdl", "tests") for path in (ROOT / folder).rglob("*.*")}
    for room in (ROOT / "hpcdl").rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or ""
        assert room.parent.name == "hpcdl" or len(docstring.splitlines()) >= 9, room
        missing = set(re.findall(r"\b\w+\.(?:py|md|toml)\b", docstring)) - there
        assert not missing, (room, missing)


def test_the_map_of_folders_is_complete():
    table = text_of("CONTRIBUTING.md").partition("| folder |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = {name.removeprefix("hpcdl/").rstrip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)}
    folders = {path.name for path in (ROOT / "hpcdl").iterdir() if (path / "__init__.py").exists()}
    assert folders <= listed
    for name in listed:
        assert (ROOT / "hpcdl" / name).exists() or (ROOT / name).exists(), name


def test_the_table_of_a_kind_has_all_its_keys():
    for kind in ["train", "collective", "replay", "pairwise"]:
        section = text_of("suites/README.md").partition(f'`kind = "{kind}"`\n')[2].partition("\n#")[0]
        cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        keys = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
        spec = importlib.import_module(f"hpcdl.cases.{kind}").SPEC
        assert sorted(keys) == sorted(field.name for field in dataclasses.fields(spec))


def test_the_table_of_strategies_has_all_settings():
    table = text_of("suites/README.md").partition("| `training` | settings |")[2].partition("\n\n")[0]
    described = {}
    for row in table.splitlines()[2:]:
        strategies, text = row.strip("| ").split(" | ", 1)
        for name in re.findall(r"`(\w+)`", strategies):
            described[name] = described.get(name, set()) | set(re.findall(r"`(\w+)`", text))
    assert sorted(described) == sorted(names("training"))
    for name, words in described.items():
        assert set(settings_of(find("training", name))) <= words, name


KEY_OF = {"training": "training", "aggregation": "aggregation", "models": "model"}
"""Key of a case by folder of the registry."""


def test_values_of_settings_are_the_documented_ones(parsed):
    def load(setting, owner, word):
        key = next(key for folder, key in KEY_OF.items() if owner in names(folder))
        strength = {"strength": 0.5} if setting == "delay_compensation" and word != "none" else {}
        scheme = {"aggregation": "binomial"} if setting == "updates" else {}
        dataset = {"name": "synthetic", "shape": [32, 32, 3]}
        parsed(ranks=4, steps=4, dataset=dataset, **scheme, **{key: {"name": owner, setting: word, **strength}})

    table = text_of("suites/README.md").partition("| setting | of | values |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        settings, owners, values = (re.findall(r'`"?(\w+)"?`', cell) for cell in row.strip("| ").split(" | "))
        assert settings, values
        words = re.findall(r'`"(\w+)"`', row)
        for setting, owner in itertools.product(settings, owners):
            for word in words:
                load(setting, owner, word)
            with pytest.raises(suite.UsageError) as refused:
                load(setting, owner, "zzz")
            assert {*words} <= {*re.findall(r"\w+", str(refused.value))}


def test_tables_of_pages_are_those_of_hpcdl_list():
    for text in map(text_of, PAGES):
        assert text == with_tables(text), "python tests/suite/tables.py writes them again"
    described, text = REPORT.read_text(encoding="utf-8"), SCHEMA.read_text(encoding="utf-8")
    assert (described, text) == (with_columns(described), schema()), "python tests/suite/tables.py writes them"


def test_a_newcomer_finds_the_question_in_the_list_of_pages(capsys):
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    for topic, question in {
        "nightly": "How do I compare two nights?",
        "scaling": "What does efficiency mean here?",
        "training": "Which strategies are there?",
        "batch": "How do I run it under Slurm?",
    }.items():
        assert question in listed
        assert main(["help", topic]) == 0
        assert f"\n## {question}\n" in capsys.readouterr().out


def test_no_sentence_stands_in_two_documents():
    seen = {}
    for document in [*DOCUMENTS, "CONTRIBUTING.md", "slurm/README.md"]:
        prose = re.sub(r"^\|.*", "", NO_PROSE.sub("", text_of(document)), flags=re.MULTILINE)
        for sentence in re.split(r"(?<=[.:])\s+", " ".join(prose.split())):
            if len(sentence) > 60:
                assert seen.setdefault(sentence, document) == document, sentence


PROSE = [*(ROOT / "hpcdl").rglob("*.md"), *(ROOT / f"{name}README.md" for name in ("", "suites/", "slurm/"))]
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
    texts += [(file, file.read_text(encoding="utf-8")) for file in PROSE]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    seen = set()
    for file, text in texts:
        for command, name in re.findall(r"\bhpcdl (help|list) ([\w-]+)", text):
            assert name in (*(pages() if command == "help" else SUBJECTS), "TOPIC", "SUBJECT"), (file, name)
            seen.add(command)
        for place, wanted in re.findall(r"(?:pip install|, or) '([\w.]*)\[([\w,-]+)\]'", text):
            # of an installed package, in any folder; README installs the folder of the source
            assert place == "hpcdl" or file.name == "README.md", (file, place)
            assert set(wanted.split(",")) <= set(extras), (file, wanted)
            seen.add("pip")
        for path in re.findall(PLACE, text):
            assert path == text or (ROOT / path).exists(), (file, path)
            seen.add("path")
    assert seen == {"help", "list", "pip", "path"}


def test_a_file_that_is_a_page_is_named_by_its_topic():
    """An installed package has no ``suites/README.md``, but ``hpcdl help suites``."""
    folders = [one if one == "suites" else f"hpcdl/{one}" for one in BESIDE_THEIR_SUBJECT.values()]
    texts = [text for file in (ROOT / "hpcdl").rglob("*.py") for text in messages(file)]
    texts += [file.read_text(encoding="utf-8") for file in pages().values()]
    assert not [folder for folder in folders for text in texts if f"{folder}/README.md" in text]


WITH_RESULTS = (*DOCUMENTS, "slurm/README.md", "hpcdl/report/README.md")
NO_PROSE = re.compile(r"```.*?```|<!-- table.*?<!-- end -->", re.DOTALL)
"""Blocks of code, and tables that a program writes."""
NO_RESULT = re.compile(
    r"`[^`]+`"  # code: commands, settings, their defaults and limits
    r"|\]\([^)]*\)|<http[^>]*>"  # links
    r'|"[^"]*"'  # what a program prints
    r"|(?:Python|version|CC BY)\s[\d.]+"
    r"|95 %|80 %",  # level of every interval, power of a test
    re.DOTALL,
)
SOURCE = re.compile(r"\b(?:reports|tests)/(?!README)[\w/-]+\.(?:md|txt|py)\b")
"""A report, a kept output, or a test that asserts the number."""
NUMBER = re.compile(r"(?<![\w.^])(?<!\w-)-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?!\w|-\w|\.\d|,\d)")
COMMAND = re.compile(r"(?:`|^\$ )(?:hpcdl|make|python) \w", re.MULTILINE)
"""By which a report or a kept output was made; a test is its own."""
MEASURED = re.compile(r"\s*%|\s+(?:times|[mu]?s|[MG]B/s)\b")
"""Unit of a measured number; one with a decimal fraction is measured, too."""


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def blocks(text):
    """Yield section, first line, and text of each paragraph, item of a list, and row of a table."""
    section, block, first = 0, [], 0
    for number, line in enumerate([*NO_PROSE.sub(blank, text).splitlines(), ""], 1):
        if block and (not line.strip() or line.lstrip().startswith(("- ", "|", "#"))):
            yield section, first, "\n".join(block)
            block = []
        if line.startswith("#"):
            section += 1
        elif line.strip():
            first = first if block else number
            block.append(line)


def holds(text, number):
    return re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", text) is not None


def missing(document, text, read):
    """Return a line for each number that no report holds, and for each report without a command.

    ``read`` returns the text of a report.

    A paragraph that names reports has all its numbers there. Of others, measured numbers stand in a report that their
    section names; those of a row of a table in one line.
    """
    found, named = list(blocks(text)), {}
    for section, _, block in found:
        named.setdefault(section, []).extend(SOURCE.findall(block))
    for section, first, block in found:
        own = SOURCE.findall(block)
        said = NO_RESULT.sub(blank, block)
        numbers = [match for match in NUMBER.finditer(said) if own or measured(said, match)]
        pages = dict.fromkeys(own or named[section])
        lacking = [page for page in own if not (page.endswith(".py") or COMMAND.search(read(page)))]
        yield from (f"{document}:{first}: {page} names no command" for page in lacking)
        texts = [re.sub(r"(?<=\d),(?=\d{3})", "", read(page)) for page in pages]
        if block.startswith("|"):
            texts = [line for page in texts for line in page.splitlines()]
            texts = [max(texts, key=lambda line: sum(holds(line, digits(match)) for match in numbers), default="")]
        for match in numbers:
            if not any(holds(page, digits(match)) for page in texts):
                line = first + said.count("\n", 0, match.start())
                where = f"is not in {', '.join(pages)}" if pages else "has no report"
                yield f"{document}:{line}: {match[0]} {where}"


def measured(text, match):
    return "." in match[0] or MEASURED.match(text, match.end())


def digits(match):
    return match[0].replace(",", "")


def test_numbers_of_documents_stand_in_the_reports_that_they_name():
    def read(page):
        path = ROOT / page
        return path.read_text(encoding="utf-8") if path.exists() else ""

    wrong = [line for document in WITH_RESULTS for line in missing(document, text_of(document), read)]
    assert not wrong, "\n".join(wrong)


def test_a_number_without_a_report_is_found():
    page = "| ring | 16 | 0.970 |\n| tree | 8 | 1024 hosts, 0.376 |\n`hpcdl run s`"
    (line,) = missing("x.md", "See `reports/a.md`.", lambda _: page[:9])
    assert line == "x.md:1: reports/a.md names no command"
    for text, number in {
        "It takes 3.1 s.": "3.1",
        "It is twice as fast\nwithin 3 %.": "3",
        "Of 7 hosts (`reports/a.md`).": "7",
        "See `reports/a.md`.\n\n| ring | 0.376 | 0.970 |": "0.376",
        "See `reports/a.md`: -0.970": "-0.970",
        "See `reports/a.md`: .97": ".97",
    }.items():
        (line,) = missing("x.md", text, lambda _: page)
        assert f": {number} " in line
    for text in (
        "With `rate = 0.1` on 16 hosts of version 1.0, ResNet-50, 95 % intervals.",
        "On 1,024 hosts 0.970 and 0.376: `reports/a.md`.",
        "See `reports/a.md`.\n\n- 0.970\n\n| tree | 0.376 |",
    ):
        assert not list(missing("x.md", text, lambda _: page))


def test_files_with_tests_of_optional_parts_are_in_the_makefiles_list():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.search(r"OPTIONAL := \$\(addprefix tests/,(.*?)\)\n", makefile, re.DOTALL)[1]
    needs = re.compile(r'importorskip\("(torch|models)|(Chromium|NVRTC|fashion-mnist) is not installed')
    tests = ROOT / "tests"
    files = [path for path in tests.rglob("test_*.py") if path != Path(__file__)]
    needing = {path.relative_to(tests) for path in files if needs.search(path.read_text(encoding="utf-8"))}
    assert sorted(map(str, needing)) == sorted({*listed.replace("\\", "").split()} - {"testbed"})
