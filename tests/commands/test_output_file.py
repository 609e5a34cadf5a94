"""Files that options name: whole or unchanged, and special files stay what they are."""

import pytest

from hpcdl.commands.parts.output import write_output
from hpcdl.suite import UsageError


@pytest.mark.parametrize("before", [None, "", "old and longer than the new text"])
def test_a_file_is_replaced(tmp_path, before):
    file = tmp_path / "page.md"
    if before is not None:
        file.write_text(before)
    write_output("-o", file, "größer")
    assert file.read_bytes() == "größer".encode()
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_a_reader_has_open_stays_whole(tmp_path):
    file = tmp_path / "x.prom"
    write_output("--metrics", file, "first")
    with file.open() as reader:
        write_output("--metrics", file, "second")
        assert reader.read() == "first"


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_output("-o", link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"


@pytest.mark.parametrize("name", ["missing/page.md", ".", "file/page.md"])
def test_what_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^-o .*: cannot be written: [^\n]+$"):
        write_output("-o", tmp_path / name, "text")
