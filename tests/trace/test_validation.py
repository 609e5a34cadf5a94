"""Damaged traces are read correctly, or refused in one line that names the file."""

import shutil
from itertools import count

import h5py
import pytest
from contract.traces import changed, refused

from hpcdl.launch.environment import describe_job, describe_rank
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import merge

SUITE = "[suite]\nname = 's'\nquestion = 'Which?'\n"


@pytest.fixture
def copied(hand, tmp_path):
    """Return a function that copies a file with two trainings and a collective, and a real machine's description."""
    evaluations = [(4, 1.0, 0.5, 0.3, 0.9, 64)]
    hand.train([[9.0] * 8], evaluations=evaluations)
    hand.train([[5.0] * 8] * 2, updates={0: [(7, 1, 5, 2, 0.1)]}, evaluations=evaluations)
    hand.case([[1.0] * 8] * 2, kind="collective", collective="allreduce", aggregation="ring", message_bytes=64)
    hand.read(
        {
            **describe_job({"library": "MPICH", "version": "5", "nodes": 1}),
            "ranks": [describe_rank(), describe_rank()],
        },
        SUITE,
    )
    numbers = count()
    return lambda: shutil.copy(hand.folder / "run.h5", tmp_path / f"copy-{next(numbers)}.h5")


def test_no_link_leads_out_of_a_trace(copied, tmp_path):
    """Otherwise a private file of the reader could appear in a report."""
    secret = copied()
    for place in ("suite", "environment", "cases", "cases/000001", "cases/000001/steps"):
        for link in (h5py.ExternalLink(str(secret), place), h5py.SoftLink("/cases/000000")):
            with changed(trace := copied()) as file:
                del file[place]
                file[place] = link
            refused(trace, f"/{place}: is a link")
            with pytest.raises(TraceError, match="is a link"):
                merge([trace], tmp_path / "merged.h5", {}, "")


def test_no_values_lie_in_another_file(copied, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not tell\n" * 1000)
    for place in ("suite", "cases/000001/steps", "cases/000001/labels"):
        with changed(trace := copied()) as file:
            old = file[place]
            shape, kind = old.shape or (10,), old.dtype if old.dtype.names else "S100"
            del file[place]
            file.create_dataset(place, shape, kind, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        refused(trace, f"/{place}: has its values in another file")
        layout = h5py.VirtualLayout(shape, kind)
        layout[:] = h5py.VirtualSource(str(secret), "x", shape, kind)
        with changed(trace) as file:
            del file[place]
            file.create_virtual_dataset(place, layout)
        refused(trace, f"/{place}: has its values in another file")


def set_field(file, name, value):
    file["cases/000001"].attrs[name] = value


def set_column(file, table, column, value):
    rows = file[f"cases/000001/{table}"][()]
    rows[column][-1] = value
    file[f"cases/000001/{table}"][...] = rows


def set_environment(file, text):
    del file["environment"]
    file["environment"] = text


def declare_rows(file):
    kind = file["cases/000001/steps"].dtype
    del file["cases/000001/steps"]
    file["cases/000001"].create_dataset("steps", (10**7,), kind, chunks=(1000,), compression="gzip")


def test_values_of_other_types_and_rows_that_are_not_there_are_refused(copied):
    for change, arguments, message in [
        (set_field, ("nodes", "x"), "field 'nodes': 'x' is not"),
        (set_field, ("correct", "yes"), "field 'correct': 'yes' is not"),
        (set_field, ("ranks", 1 << 40), "no case has 1099511627776 ranks"),
        (set_field, ("note", [1, 2]), "field 'note'"),
        (set_field, ("settings", "[]"), "field 'settings'"),
        (set_column, ("steps", "rank", 2), "rows of a rank that is not one of 2"),
        (set_environment, ('{"ranks": [3]}',), "environment: ranks"),
        (set_environment, ('{"ranks": [{"affinity": "0-99999999"}]}',), "environment: affinity"),
        (declare_rows, (), "/cases/000001/steps: declares more rows than the file has"),
    ]:
        with changed(trace := copied()) as file:
            change(file, *arguments)
        refused(trace, message)


def test_a_sparse_file_is_refused_unread(copied):
    with (trace := copied()).open("r+b") as file:
        file.truncate(1 << 40)
    refused(trace, "its checksum does not fit")
