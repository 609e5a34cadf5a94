"""A figure as a file: well-formed SVG with title, legend and note, which fetches nothing and has both themes."""

import xml.etree.ElementTree as ET

import pytest
from report_runs import HOSTILE

from hpcdl.cli import main
from hpcdl.report.formats.canvas import DARK, LIGHT
from hpcdl.report.render import render

NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs(illustrated_run, hostile_run):
    return {"mine": illustrated_run, HOSTILE: hostile_run}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine", HOSTILE], ids=["usual", "hostile"])
@pytest.mark.parametrize("title", ["", "Where a step", "Links"])
def test_a_figure_is_one_well_formed_file(runs, name, title):
    text = render([runs[name]], f"svg:{title}")
    root = ET.fromstring(text)
    assert root.tag == f"{NAMESPACE}svg"
    assert root.get("aria-label").startswith(title)
    assert {one.tag.removeprefix(NAMESPACE) for one in root.iter()} <= {
        *("svg", "style", "rect", "text", "tspan", "g", "path", "use", "defs", "clipPath", "image"),
    }
    for one in root.iter():
        for attribute, value in one.attrib.items():
            if attribute.rpartition("}")[2] == "href":
                assert value.startswith(("#", "data:image/png;base64,"))
            assert not attribute.startswith("on")
    for theme in (LIGHT, DARK):
        assert f"--ink:{theme.ink};" in text


def test_the_command_writes_a_figure_and_names_the_nearest(runs, tmp_path, capsys):
    run = runs["mine"]
    file = tmp_path / "x.svg"
    assert main(["report", str(run.path), "-o", str(file), "--figure", "Speedup"]) == 0
    assert ">ideal</text>" in file.read_text(encoding="utf-8")
    assert main(["report", str(run.path), "-o", str(file), "--figure", "Spedup"]) == 2
    assert "no figure 'Spedup'; did you mean 'Speedup" in capsys.readouterr().err
    assert main(["report", str(run.path), "--figure", "Speedup"]) == 2
    assert capsys.readouterr().err == "hpcdl: --figure: only with -o FILE.svg\n"
