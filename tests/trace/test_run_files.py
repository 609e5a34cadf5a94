"""Files of a run folder are not redirected by links."""

import os

import pytest

from hpcdl.trace import files
from hpcdl.trace.files import atomic_write


@pytest.fixture
def elsewhere(tmp_path):
    file = tmp_path / "elsewhere"
    file.write_text("precious")
    return file


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    (folder / "parts").mkdir(parents=True)
    return folder


def test_links_are_not_followed(folder, elsewhere):
    (folder / "log.txt").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"log\.txt"):
        files.append(folder / "log.txt")
    with pytest.raises(OSError, match=r"log\.txt"):
        files.write_text(folder / "log.txt", "x")
    assert elsewhere.read_text() == "precious"


def test_a_link_in_the_place_of_a_partial_file_is_replaced(folder, elsewhere):
    (folder / ".run.h5.partial").symlink_to(elsewhere)
    with atomic_write(folder / "run.h5") as beside:
        beside.write_text("new")
    assert elsewhere.read_text() == "precious"
    assert not (folder / "run.h5").is_symlink()
    assert (folder / "run.h5").read_text() == "new"


@pytest.mark.parametrize("name", [*files.FILES, "parts/0000-0123456789ab.h5", "parts/.x.partial"])
def test_links_of_a_run_folder_are_named(folder, elsewhere, name):
    if name == "parts":
        (folder / name).rmdir()
    (folder / name).symlink_to(elsewhere.parent if name == "parts" else elsewhere)
    assert files.write_obstacle(folder) == f"{name} is a symbolic link; links are not followed"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize("name", ["log.txt", "parts", "parts/0000-0123456789ab.h5"])
def test_files_of_another_user_are_named(folder, name):
    if name != "parts":
        (folder / name).write_text("")
    os.chown(folder / name, 12345, -1)
    assert files.write_obstacle(folder) == f"{name} belongs to another user (12345)"


def test_a_run_folder_of_ones_own_is_fine(folder, tmp_path):
    (folder / "log.txt").write_text("")
    assert files.write_obstacle(folder) is None
    (tmp_path / "link").symlink_to(folder)
    assert files.write_obstacle(tmp_path / "link") is None, "the user has named it"
