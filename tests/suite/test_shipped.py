"""Suites of the package: each is found by name in a checkout and in a wheel, and passes a dry run."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data.test_binary_files import idx_bytes

from hpcdl import suite
from hpcdl.cli import main
from hpcdl.data.binary_files import FILES
from hpcdl.fabric.network import MACHINES

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "suites").glob("*.toml"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Return a folder with the four files of Fashion-MNIST, of random images."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(1)
    for (pictures, labels), count in ((FILES[:2], 20000), (FILES[2:], 1000)):
        (folder / pictures).write_bytes(idx_bytes(rng.integers(0, 256, (count, 28, 28), np.uint8)))
        (folder / labels).write_bytes(idx_bytes(np.arange(count, dtype=np.uint8) % 10))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_suite_passes_a_dry_run_by_name(name, images, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HPCDL_DATA", str(images))
    monkeypatch.chdir(tmp_path)
    assert main(["run", name, "--dry-run"]) == 0
    *cases, count = capsys.readouterr().out.splitlines()
    assert count.startswith(f"{len(cases)} case")
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_shipped_suite_wins_over_a_file_unless_its_path_is_typed(tmp_path, monkeypatch, capsys):
    """Otherwise a stranger's file in a shared folder could import its modules."""
    monkeypatch.chdir(tmp_path)
    text = '[suite]\nname = "mine"\n[[case]]\nkind = "pairwise"\nmessage_bytes = 8\n'
    Path("quickstart").write_text(text)
    for typed, mine in (("quickstart", False), ("./quickstart", True)):
        assert main(["run", typed, "--dry-run"]) == 0
        assert capsys.readouterr().out.startswith("pairwise") == mine


def test_the_message_for_an_unknown_suite_has_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("quickstrt", "quickstart.toml", "suites/quickstart.toml"):
        with pytest.raises(suite.UsageError, match="no suite of that name; did you mean 'quickstart'"):
            suite.load(Path(given))


def test_every_file_of_data_is_part_of_the_package():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"].items()
    globs = [(ROOT / package.replace(".", "/"), name) for package, names in patterns for name in names]
    shipped = {path for folder, name in globs for path in folder.glob(name)}
    files = {path for path in (ROOT / "hpcdl").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files if path.suffix != ".py"} <= shipped


@pytest.mark.slow
def test_a_wheel_has_the_suites(tmp_path):
    copy = tmp_path / "copy"
    for folder in ("hpcdl", "suites"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, copy]
    ended = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=300)
    if "No matching distribution found for setuptools" in ended.stderr:
        pytest.skip("pip finds no setuptools to build a wheel with")
    assert ended.returncode == 0, ended.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert {name for name in inside if name.endswith(".toml")} == {
        *(f"hpcdl/suites/{name}.toml" for name in NAMES),
        *(f"hpcdl/papers/{path.relative_to(suite.PAPERS)}" for path in suite.PAPERS.rglob("*.toml")),
        *(f"hpcdl/networks/{path.name}" for path in MACHINES.glob("*.toml")),
        *("hpcdl/models/published_sizes.toml", "hpcdl/report/formats/sentences.toml"),
    }
