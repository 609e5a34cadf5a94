import pytest
from conftest import Hand
from report_runs import HOSTILE, all_figures

from hpcdl.report.contents import document
from hpcdl.report.formats.writers import markdown
from hpcdl.report.run.findings import findings


def steps(ms, spread=0.001):
    """Thirty steps that vary a little."""
    return [ms * (1 + spread * (number % 5 - 2)) for number in range(30)]


@pytest.fixture
def row():
    return _row


class Cells(list):
    """Cells of a table's row, by place or by heading; ``header`` of the same table."""

    def __init__(self, cells, header):
        super().__init__(cells)
        self.header = header

    def __getitem__(self, key):
        return super().__getitem__(self.header.index(key) if isinstance(key, str) else key)


def _row(page, *starts):
    """Return the first table row that begins with these cells."""
    header = before = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(starts)] == list(starts):
            return Cells(cells, header)
        header, before = before if line.startswith(("|:", "|-")) else header, cells
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
