"""Damaged traces are read correctly, or refused in one line that names the file."""

import shutil

import h5py
import pytest
from contract.traces import changed, refused

from hpcdl.launch.environment import describe_job, describe_rank
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import merge

SUITE = "[suite]\nname = 's'\nquestion = 'Which?'\n"


@pytest.fixture
def whole(hand):
    """Write a file with two trainings and a collective, and the description of a real machine."""
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
    return hand.folder / "run.h5"


@pytest.mark.parametrize("place", ["suite", "environment", "cases", "cases/000001", "cases/000001/steps"])
def test_no_link_leads_out_of_a_trace(whole, tmp_path, place):
    """Otherwise a private file of the reader could appear in a report."""
    secret = tmp_path / "secret.h5"
    shutil.copy(whole, secret)
    with changed(whole) as file:
        del file[place]
        file[place] = h5py.ExternalLink(str(secret), place)
    refused(whole, f"/{place}: is a link")
    with pytest.raises(TraceError, match="is a link"):
        merge([whole], tmp_path / "merged.h5", {}, "")
    with changed(whole) as file:
        del file[place]
        file[place] = h5py.SoftLink("/cases/000000")
    refused(whole, f"/{place}: is a link")


@pytest.mark.parametrize("place", ["suite", "cases/000001/steps", "cases/000001/labels"])
def test_no_values_lie_in_another_file(whole, tmp_path, place):
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not tell\n" * 1000)
    with changed(whole) as file:
        old = file[place]
        shape, kind = old.shape or (10,), old.dtype if old.dtype.names else "S100"
        del file[place]
        file.create_dataset(place, shape, kind, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    refused(whole, f"/{place}: has its values in another file")
    layout = h5py.VirtualLayout(shape, kind)
    layout[:] = h5py.VirtualSource(str(secret), "x", shape, kind)
    with changed(whole) as file:
        del file[place]
        file.create_virtual_dataset(place, layout)
    refused(whole, f"/{place}: has its values in another file")


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


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (set_field, ("nodes", "x"), "field 'nodes': 'x' is not"),
        (set_field, ("correct", "yes"), "field 'correct': 'yes' is not"),
        (set_field, ("ranks", 1 << 40), "no case has 1099511627776 ranks"),
        (set_field, ("note", [1, 2]), "field 'note'"),
        (set_field, ("settings", "[]"), "field 'settings'"),
        (set_column, ("steps", "rank", 2), "rows of a rank that is not one of 2"),
        (set_environment, ('{"ranks": [3]}',), "environment: ranks"),
        (set_environment, ('{"ranks": [{"affinity": "0-99999999"}]}',), "environment: affinity"),
        (declare_rows, (), "/cases/000001/steps: declares more rows than the file has"),
    ],
)
def test_values_of_other_types_and_rows_that_are_not_there_are_refused(whole, change, arguments, message):
    with changed(whole) as file:
        change(file, *arguments)
    refused(whole, message)


def test_a_sparse_file_is_refused_unread(whole):
    with whole.open("r+b") as file:
        file.truncate(1 << 40)
    refused(whole, "its checksum does not fit")
