"""Generated tables: of hpcdl/docs from what ``hpcdl list`` knows, and the columns of CSV and JSON from the quantities.

``python tests/suite/tables.py`` writes them again.
"""

import json
import re
from pathlib import Path

from hpcdl.cases.keys.suite_tables import kinds
from hpcdl.commands.list import catalogue
from hpcdl.trace.quantities import CHAPTERS, COLUMNS
from hpcdl.trace.quantity import declared

PACKAGE = Path(__file__).parents[2] / "hpcdl"
DOCS = PACKAGE / "docs"
REPORT = PACKAGE / "report/README.md"
SCHEMA = PACKAGE / "report/schema.json"
LONGEST = 30
"""Characters of a formula that fits into a column."""


def cells(subject, entry):
    """Return the cells of one row, by column."""
    row = {"name": f"`{entry['name']}`"}
    if subject == "models":
        row |= {"input": "", "parameters": "", "GMAC": ""}
    if "parameters" in entry:
        row |= {
            "input": "x".join(map(str, entry["shape"])),
            "parameters": f"{entry['parameters']:,}",
            "GMAC": f"{entry['multiply_adds_per_image'] / 1e9:.4g}",
        }
    row["description"] = entry["summary"].replace("``", "`").removesuffix(" Any p.")
    if subject == "aggregation":
        formulas = [entry["costs"].get(f"{what}, busiest rank", "") for what in ("Messages", "Bytes")]
        row |= zip(
            ("messages", "bytes"),
            (f"`{text}`" if 0 < len(text) <= LONGEST else "" for text in formulas),
            strict=True,
        )
    return row


def table(subject):
    """Return the Markdown table of a subject of ``hpcdl list``."""
    rows = [cells(subject, entry) for entry in catalogue(subject)]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_tables(text):
    """Return a page with the tables that its markers ask for."""
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{table(found[2])}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def columns():
    """Return the chapters that describe the columns: a row for each quantity with a meaning, and those after it."""
    lines = []
    for chapter in CHAPTERS:
        lines += [f"## {chapter.__doc__.removesuffix('.')}", "", "| column | meaning |", "| --- | --- |"]
        rows = []
        for quantity in declared(chapter):
            rows += [([], quantity.meaning)] if quantity.meaning else []
            rows[-1][0].append(f"`{quantity.name}`")
        lines += [*(f"| {', '.join(names)} | {meaning} |" for names, meaning in rows), ""]
    return "\n".join(lines)


def with_columns(text):
    """Return the description of CSV and JSON with the chapters of the columns."""
    head, _, rest = text.partition("## ")
    return f"{head}{columns()}\n# Fields{rest.partition('# Fields')[2]}"


def schema():
    """Return the text of the JSON Schema of ``--json``."""
    properties = {name: quantity.schema for name, quantity in COLUMNS.items()}
    properties["kind"] = {"enum": kinds()}
    properties["run"] = {"type": "string"}
    case = {"type": "object", "required": ["run", "kind", "ranks"], "properties": properties}
    about_runs = {
        "run": {"type": "string"},
        "complete": {"type": "boolean"},
        "failed_cases": {"type": "array"},
        "cases_not_run": {"type": "array"},
        "link_counters": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    }
    run = {"type": "object", "required": list(about_runs), "properties": about_runs}
    network = {"type": "object", "required": ["run"], "properties": {"run": {"type": "string"}}}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hpcdl report --json",
        "type": "object",
        "required": ["schema", "cases", "networks", "runs"],
        "properties": {
            "schema": {"const": 1},
            **{
                name: {"type": "array", "items": items}
                for name, items in {"cases": case, "networks": network, "runs": run}.items()
            },
        },
    }
    text = json.dumps(document, indent=1)
    types = r'\{\s+("(?:type|enum)": (?:"\w+"|\[[^]]*\]))\s+\}'  # a line for each column
    return (
        re.sub(
            types, lambda found: re.sub(r"\s+", " ", f"{{{found[1]}}}").replace("[ ", "[").replace(" ]", "]"), text
        )
        + "\n"
    )


if __name__ == "__main__":
    REPORT.write_text(with_columns(REPORT.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
    for page in DOCS.glob("*.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
