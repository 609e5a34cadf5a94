import pytest


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
