"""The JSON Schema, the frame and the README describe the document that --json prints."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

import hpcdl
from hpcdl.analysis.run.record import COLUMNS as RECORDED
from hpcdl.report.run.render import ORIGIN, render

FOLDER = Path(hpcdl.__file__).parent / "report"
SCHEMA = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
COLUMNS = SCHEMA["properties"]["cases"]["items"]["properties"]


@pytest.fixture(scope="module")
def text(illustrated_run):
    return render([illustrated_run], "json")


def test_the_schema_has_the_columns_of_the_readme():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.split("\n# ")[0], re.MULTILINE)
    assert sorted(COLUMNS) == sorted(re.findall(r"`(\w+)`", " ".join(rows)))
    assert {*RECORDED, *ORIGIN} - {"launch"} <= set(COLUMNS)


def test_a_document_is_valid(text):
    document = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    assert {"train", "collective", "pairwise"} == {case["kind"] for case in document["cases"]}


@pytest.mark.parametrize(("column", "value"), [("ranks", "4"), ("kind", "other"), ("step_seconds", "1 s")])
def test_a_wrong_type_is_not_valid(text, column, value):
    document = json.loads(text)
    document["cases"][0][column] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
