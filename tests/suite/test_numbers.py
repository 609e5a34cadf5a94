"""Numbers that documents state as results stand in the report that they name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    *("README.md", "suites/README.md", "slurm/README.md", "hpcdl/report/README.md"),
    *(f"hpcdl/docs/{file.name}" for file in sorted((ROOT / "hpcdl/docs").glob("*.md"))),
)
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
REPORT = re.compile(r"\b(?:reports|tests)/(?!README)[\w/-]+\.(?:md|txt|py)\b")
"""A report, a kept output, or a test that asserts the number."""
NUMBER = re.compile(r"(?<![\w.^])(?<!\w-)-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?!\w|-\w|\.\d|,\d)")
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
    """Return a line for each number that no report holds; ``read`` returns the text of a report.

    A paragraph that names reports has all its numbers there. Of others, measured numbers stand in a report that their
    section names; those of a row of a table in one line.
    """
    found, named = list(blocks(text)), {}
    for section, _, block in found:
        named.setdefault(section, []).extend(REPORT.findall(block))
    for section, first, block in found:
        own = REPORT.findall(block)
        said = NO_RESULT.sub(blank, block)
        numbers = [match for match in NUMBER.finditer(said) if own or measured(said, match)]
        pages = dict.fromkeys(own or named[section])
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

    wrong = [
        line
        for document in DOCUMENTS
        for line in missing(document, (ROOT / document).read_text(encoding="utf-8"), read)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_number_without_a_report_is_found():
    page = "| ring | 16 | 0.970 |\n| tree | 8 | 1024 hosts, 0.376 |"
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
