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
    """Cells of a table's row, by place or by heading; a heading may be of a value that stands above the table.

    "step" is the value of the column "step (95 %)", and "step 95 %" what stands in parentheses there.
    """

    def __init__(self, cells, header, shared):
        super().__init__(cells)
        self.named, self.shared = dict(zip(header, cells, strict=True)), shared

    def __getitem__(self, key):
        if not isinstance(key, str):
            return super().__getitem__(key)
        name = key.removesuffix(" 95 %")
        for known in (name, f"{name} (95 %)"):
            above = [text.removeprefix(f"{known} ") for text in self.shared if text.startswith(f"{known} ")]
            for cell in [self.named[known]] if known in self.named else above:
                value, _, bounds = cell.partition(" (") if known != name else (cell, "", "")
                return bounds.rstrip(")") if name != key else value
        raise KeyError(key)


def _row(page, *starts):
    """Return the first table row that begins with these cells; else except for those that stand above the table."""
    found = _first(page, starts, above=False) or _first(page, starts, above=True)
    assert found, f"no row {starts} in\n{page}"
    return found


def _first(page, starts, *, above):
    header, before, shared, inside = [], [], [], False
    for line in page.splitlines():
        if inside and not line.startswith("|"):
            shared = []
        inside = line.startswith("|")
        if line.startswith("The same in "):
            shared = line.partition(": ")[2].removesuffix(".").split(", ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        begin = [cell for cell in starts if not (above and any(text.endswith(f" {cell}") for text in shared))]
        if inside and begin and cells[: len(begin)] == begin:
            return Cells(cells, header, shared)
        header, before = before if line.startswith(("|:", "|-")) else header, cells
    return None


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
