"""The JSON Schema, the frame and the README describe the document that --json prints."""

import json
from pathlib import Path

import jsonschema
import pytest

import hpcdl
from hpcdl.report.render import render

SCHEMA = json.loads((Path(hpcdl.__file__).parent / "report/schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text(illustrated_run):
    return render([illustrated_run], "json")


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
