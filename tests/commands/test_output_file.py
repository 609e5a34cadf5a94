"""Files that options name: whole or unchanged, and special files stay what they are."""

import os

import pytest

from hpcdl.commands.parts.job import claimed
from hpcdl.commands.parts.options import write_output
from hpcdl.report.render import save
from hpcdl.suite import UsageError
from hpcdl.trace.files import atomic_write


def test_a_file_is_replaced_and_stays_whole_for_who_has_it_open(tmp_path):
    file = tmp_path / "page.md"
    write_output("-o", file, "old and longer than the new text")
    with file.open() as reader:
        write_output("-o", file, "größer")
        assert reader.read() == "old and longer than the new text"
    assert file.read_bytes() == "größer".encode()
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_output("-o", link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"


def test_no_foreign_file_of_a_shared_folder_is_written_or_waited_for(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_text("theirs")
    for name in (".page.md.partial", "report.md", "report.html"):
        (tmp_path / name).symlink_to(foreign)
    os.mkfifo(tmp_path / ".x.prom.partial")
    write_output("-o", tmp_path / "page.md", "mine")
    write_output("-o", tmp_path / "x.prom", "mine")
    save(tmp_path, ["mine", "mine"])
    assert foreign.read_text() == "theirs"
    for make in (os.mkfifo, lambda log: log.symlink_to(foreign), lambda log: log.symlink_to(log)):
        make(tmp_path / "log.txt")
        with pytest.raises(UsageError, match=r"^-o .*: log\.txt cannot be written: [^\n]+$"), claimed(tmp_path):
            pass
        (tmp_path / "log.txt").unlink()


def test_a_second_run_into_one_folder_is_refused(tmp_path):
    refused = pytest.raises(UsageError, match=r"^-o .*: another hpcdl process is writing to it$")
    with claimed(tmp_path), refused, claimed(tmp_path):
        pass


def test_two_writers_of_a_file_with_the_longest_name_lose_nothing(tmp_path):
    file = tmp_path / f"{'a' * 252}.md"
    with atomic_write(file) as mine, atomic_write(file) as other:
        mine.write_text("mine")
        other.write_text("other")
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("missing/page.md", ".", "file/page.md"):
        with pytest.raises(UsageError, match=r"^-o .*: cannot be written: [^\n]+$"):
            write_output("-o", tmp_path / name, "text")
