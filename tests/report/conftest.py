import pytest
from conftest import Hand
from report_runs import HOSTILE, all_figures

from hpcdl.report.contents import document
from hpcdl.report.formats.markup import markdown
from hpcdl.report.run.findings import findings


@pytest.fixture
def row():
    return _row


def _row(page, *starts):
    """Cells of the first table row that begins with these."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(starts)] == list(starts):
            return cells
    raise AssertionError(f"no row {starts} in\n{page}")


@pytest.fixture
def whole():
    """Return a function of a run: Markdown with all rows, which only HTML and LaTeX have."""
    return lambda run: markdown([document(*findings([run]))])


@pytest.fixture(scope="session")
def illustrated_run(tmp_path_factory):
    """Return a run with content for every figure."""
    return all_figures(Hand(tmp_path_factory.mktemp("illustrated")))


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory):
    """Return such a run whose names are hostile."""
    return all_figures(Hand(tmp_path_factory.mktemp("hostile")), HOSTILE)
