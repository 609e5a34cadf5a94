import pytest
from conftest import Hand
from report_runs import HOSTILE, all_figures

from hpcdl.report.contents import document
from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.writers import markdown, plain
from hpcdl.report.run.findings import findings


def steps(ms, spread=0.001):
    """Thirty steps that vary a little."""
    return [ms * (1 + spread * (number % 5 - 2)) for number in range(30)]


def operation(hand, scheme, size, ms, **fields):
    """Write an allreduce of one rank, or of two if ``ms`` is a list."""
    whole = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "warmup_steps": 0}
    times = [ms] * 2 if isinstance(ms, list) else [[ms]]
    hand.case(times, aggregation=scheme, message_bytes=size, **{"correct": True, **whole, **fields})


class Cells(list):
    """Cells of a table's row, by place, or by the heading of a column or of a value that stands above the table.

    "step" and "step 95 %" are the value and the interval of a cell of the column "step (95 %)".
    """

    def __init__(self, cells, header, above):
        super().__init__(cells)
        self.named, self.above = dict(zip(header, cells, strict=True)), above

    def __getitem__(self, key):
        if not isinstance(key, str):
            return super().__getitem__(key)
        name = key.removesuffix(" 95 %")
        if not (whole := self._text(f"{name} (95 %)")):
            return self._text(key) or self.named[key]
        value, _, bounds = whole.partition(" (")
        return value if name == key else bounds.removesuffix(")")

    def _text(self, heading):
        values = [text.removeprefix(f"{heading} ") for text in self.above if text.startswith(f"{heading} ")]
        return self.named.get(heading, *values)  # a TypeError if several could be meant


def first_row(page, *starts, **above):
    """Return the first table row that begins with these cells, of a table below these values of all its rows."""
    header, before, shared, inside = [], [], [], False
    wanted = {f"{name} {value}" for name, value in above.items()}
    for line in page.splitlines():
        if inside and not line.startswith("|"):
            shared = []
        inside = line.startswith("|")
        if line.startswith("The same in "):
            shared = line.partition(": ")[2].removesuffix(".").split(", ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if inside and cells[: len(starts)] == [*starts] and wanted <= {*shared}:
            return Cells(cells, header, shared)
        header, before = before if line.startswith(("|:", "|-")) else header, cells
    raise AssertionError(f"no row {starts} {above} in\n{page}")


def on_terminal(*tables):
    """Return the text of a page with these tables alone, as a terminal shows it."""
    return plain([Document("d", [Section("s", tables=tables)])])


@pytest.fixture
def row():
    return first_row


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
