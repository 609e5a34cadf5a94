"""One figure or one table as a file: SVG of both themes, which fetches nothing; PDF and PNG; LaTeX to be input."""

import csv
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest
from report_runs import HOSTILE

from hpcdl.cli import main
from hpcdl.report.formats.canvas import DARK, LIGHT
from hpcdl.report.formats.figure import standalone
from hpcdl.report.render import TABLES, chosen, figures, tables

NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs(illustrated_run, hostile_run):
    return {"mine": illustrated_run, HOSTILE: hostile_run}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine", HOSTILE], ids=["usual", "hostile"])
@pytest.mark.parametrize("title", ["", "Where a step", "Links"])
def test_a_figure_is_one_well_formed_file(runs, name, title):
    text = standalone(chosen("figure", figures([runs[name]]), title), "svg").decode()
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


def test_an_svg_has_literal_colours_beside_variables(runs):
    """rsvg-convert and Inkscape skip ``@supports``, and draw the colours of the light theme."""
    text = standalone(chosen("figure", figures([runs["mine"]]), "Speedup"), "svg").decode()
    drawing = text.partition("</style>")[2]
    colours = set(re.findall(r"(?:fill|stroke): (#\w+)", drawing))
    assert {LIGHT.ink, LIGHT.grid, LIGHT.paper, LIGHT.series[0]} <= colours <= {*LIGHT[:-1], *LIGHT.series}
    assert "var(" not in drawing
    assert "var(" in text.partition("@supports")[2]
    assert not {colour for colour in colours if f": {colour}" not in text.partition("@supports")[2]}


def test_a_figure_is_pdf_or_png_by_its_suffix_and_equal_figures_are_equal_files(runs):
    for form, begin in (("pdf", b"%PDF-"), ("png", b"\x89PNG")):
        first, second = (standalone(chosen("figure", figures([runs["mine"]]), ""), form) for _ in range(2))
        assert first.startswith(begin) and first == second


def test_the_command_writes_a_figure_lists_titles_and_names_the_nearest(runs, tmp_path, capsys, refused):
    run = str(runs["mine"].path)
    file = tmp_path / "x.svg"
    assert main(["report", run, "--figure", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [*figures([runs["mine"]])]
    assert main(["report", run, "-o", str(file), "--figure", "Speedup"]) == 0
    assert ">ideal</text>" in file.read_text(encoding="utf-8")
    capsys.readouterr()
    said = refused("report", run, "-o", file, "--figure", "Spedup")
    assert "no figure 'Spedup'; did you mean 'Speedup" in said
    assert "no table 'Scling'; did you mean 'Scaling" in refused("report", run, "--table", "Scling")
    for option, known in (("--figure", ".svg or .pdf or .png"), ("--table", ".md or .tex or .csv")):
        wanted = f"hpcdl: {option}: only with -o FILE, which ends in {known}; {option} list prints the titles\n"
        assert refused("report", run, "-o", "x.html", option, "Speedup") == wanted


def test_one_table_has_all_rows_in_each_form(runs):
    """A hostile name stays text."""
    for run in runs.values():
        for table in tables([run]).values():
            markdown, latex, rows = (write(table) for write in TABLES.values())
            cells = list(csv.reader(rows.splitlines()))
            assert len({len(row) for row in cells}) == 1
            assert sum(line.startswith("|") for line in markdown.splitlines()) == len(cells) + 1
            assert latex.startswith("% \\usepackage{booktabs,longtable,array}\n")
            assert "\\documentclass" not in latex and latex.count("\\begin{longtable}") == 1
            assert latex.count(r" \\") == len(cells)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_inputs_a_table(runs, tmp_path):
    (tmp_path / "t.tex").write_text(TABLES["tex"](chosen("table", tables([runs[HOSTILE]]), "Scaling")))
    packages = r"\usepackage[T1]{fontenc}\usepackage{booktabs,longtable,array,textcomp}"
    text = rf"\documentclass{{article}}{packages}\begin{{document}}\input{{t}}\end{{document}}"
    (tmp_path / "main.tex").write_text(text)
    subprocess.run(["pdflatex", "-halt-on-error", "main"], cwd=tmp_path, check=True, timeout=60)
