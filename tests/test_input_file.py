"""Input files must be regular files of limited size: no FIFO, no device, no oversized archive."""

import gzip
import os
from pathlib import Path

import pytest
from suite.conftest import CASES, text_of

from hpcdl import suite
from hpcdl.commands.parts.options import read_accepted
from hpcdl.data.hdf5 import hdf5
from hpcdl.data.numpy import numpy
from hpcdl.data.parts import dataset as data_file
from hpcdl.data.parts.dataset import DataError, content
from hpcdl.launch.batch_script import site_profile
from hpcdl.models.layers import read_table
from hpcdl.prediction.network_file import load_network as network
from hpcdl.trace import files
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import read as trace

TEXTS = {
    text_of(CASES["collective"]): lambda path: suite.load(path).name,
    '[network]\nname = "s"\nranks_per_host = "all"\ngamma = 0\n': lambda path: network(path).network.name,
    "name,parameters,activations,forward_flop,backward_flop\ns,3,1,2,4\n": lambda path: read_table(path)[0].name,
    '[[accept]]\ncase = "s"\nreason = "r"\nexpires = 2027-01-31\nchange = "10%"\n': (
        lambda path: read_accepted(path)[0].case
    ),
    'partition = "s"\n': lambda path: site_profile(path).partition,
}
"""Texts of kinds of files, and readers that find a name, "s"."""


@pytest.mark.parametrize(("text", "read"), TEXTS.items(), ids=["suite", "network", "table", "accept", "site"])
def test_a_text_may_have_a_byte_order_mark_and_is_in_utf_8(text, read, tmp_path):
    path = tmp_path / "file"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(text.replace("\n", "\r\n"), encoding=encoding)
        assert read(path) == "s"
    path.write_text(text, encoding="utf-16")
    with pytest.raises((ValueError, suite.UsageError), match=r"file.*not UTF-8 text \(UTF-16\); save it as"):
        read(path)


READERS = {
    "suite": (suite.load, suite.UsageError),
    "network file": (network, ValueError),
    "data file": (content, DataError),
    "HDF5 data file": (lambda path: hdf5(path=str(path)), DataError),
    "NumPy data file": (lambda path: numpy(path=str(path)), DataError),
    "trace": (trace, TraceError),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_fifo_and_a_device_are_refused(tmp_path, reader):
    os.mkfifo(fifo := tmp_path / "a.fifo.gz")
    read, error = READERS[reader]
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(error, match=rf"{path}: .*not a regular file"):
            read(path)


def test_a_run_folder_with_a_fifo_and_a_loop_of_links_are_refused(tmp_path, refused):
    os.mkfifo(tmp_path / "run.h5")
    with pytest.raises(TraceError, match=r"run\.h5: not a regular file"):
        trace(tmp_path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert refused("compare", loop, "--with", loop)


def test_a_text_that_is_too_long_is_refused(tmp_path):
    long = tmp_path / "long.toml"
    long.write_bytes(b"#" * (files.MAX_TEXT + 1))
    with pytest.raises(suite.UsageError, match="cannot be read: larger than 4194304 bytes"):
        suite.load(long)
    long.write_bytes(b"#" * files.MAX_TEXT)
    with pytest.raises(suite.UsageError, match="there is no"):
        suite.load(long)


def test_an_archive_with_too_large_content_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data_file, "MAX_DATA", 1000)
    path = tmp_path / "large.gz"
    path.write_bytes(gzip.compress(bytes(1001)))
    with pytest.raises(DataError, match="larger than 1000 bytes when unpacked"):
        content(path)
    path.write_bytes(gzip.compress(bytes(1000)))
    assert content(path) == bytes(1000)
