"""Closed streams, unusual locales, names and variables give a result or one line, never a traceback."""

import os
import subprocess

import pytest

from hpcdl.cli import main

from .conftest import LIMIT

EXCHANGE = """
question = "Größe in µs?"
[[case]]
kind = "pairwise"
message_bytes = 64
repetitions = 10
warmup = 1
"""

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def in_shell(hpcdl, line, **environment):
    """Run the shell line with the hpcdl command as $@."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *hpcdl.hpcdl()],
        cwd=hpcdl.folder,
        env=hpcdl.environment(**environment),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_closed_streams_do_not_end_a_run(hpcdl):
    hpcdl.suite(EXCHANGE)
    for command in ("list models >&-", "run tiny.toml -o run <&- >&- 2>&-"):
        done = in_shell(hpcdl, f'"$@" {command}')
        assert (done.returncode, done.stderr) == (0, "")
    assert "fabric" in (hpcdl.folder / "run/report.md").read_text(encoding="utf-8")


def test_a_locale_without_a_letter_and_a_variable_that_is_not_text_give_a_report(hpcdl):
    hpcdl.suite(EXCHANGE)
    for command in (["run", "tiny.toml", "-o", "run"], ["report", "run"]):
        done = hpcdl(*command, **ASCII, OMP_PLACES=os.fsdecode(b"\xe9"))
        assert done.returncode == 0, done.stderr
        assert "Gr\\xf6\\xdfe in \\xb5s?" in done.stdout
    page = (hpcdl.folder / "run/report.md").read_text(encoding="utf-8")
    assert "Größe in µs?" in page
    assert "\\udce9" in page


def test_settings_of_libraries_do_not_reach_a_figure(hpcdl, hand):
    hand.train([[1.0] * 8] * 2, case="c").train([[2.0] * 8], case="d").read({}, "[suite]\nname = 's'\n")
    assert hpcdl("report", ".", "-o", "plain.svg").returncode == 0
    (hpcdl.folder / "matplotlibrc").write_bytes(b"lines.linewidth: 9\nfont.size: 30\n\xff")
    options = "threshold=2, edgeitems=1, legacy='1.13', formatter={'all': lambda _: 'X'}"
    (hpcdl.folder / "sitecustomize.py").write_text(f"import numpy\nnumpy.set_printoptions({options})\n")
    done = hpcdl("report", ".", "-o", "other.svg", MPLBACKEND="module://of_a_notebook", HOME="/proc")
    assert (done.returncode, done.stderr) == (0, "")
    assert (hpcdl.folder / "other.svg").read_bytes() == (hpcdl.folder / "plain.svg").read_bytes()


def refusal(capsys, *arguments):
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr().err
    assert (code, told.count("\n")) == (2, 1)
    return told


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(f'[suite]\nname = "s"\n{EXCHANGE}', encoding="utf-8")
    return str(path)


def test_empty_names_and_huge_numbers_are_refused(capsys):
    for arguments, message in [
        (["report", os.fsdecode(b"r\xe9")], "hpcdl: r\\udce9: no such file"),
        (["run", "s.toml", "-o", ""], "hpcdl run: -o: the name is empty"),
        (["run", ""], "hpcdl run: SUITE: the name is empty"),
        (["report", "run", "-o", ""], "hpcdl report: -o: the name is empty"),
        (["predict", "s.toml", "--network", "gemini", "--save", ""], "hpcdl predict: --save: the name is empty"),
        (["run", "s.toml", "-n", "9" * 5000], "is not a whole number"),
        (["run", "s.toml", "-n", "9" * 50], f"-n/--ranks: {'9' * 50} is out of range"),
        (["list", "models", "--batch", "9" * 400], f"--batch: {'9' * 40}...{'9' * 20} is out of range"),
        (["list", "models", "--batch", "256,9" + "9" * 4999], "is not a whole number"),
        (["list", "models", "--batch", "2000000000"], "--batch: 2000000000 is not from 1 to 1000000000"),
        (["testbed", "--hosts", "9" * 5000, "--rate", "1mbit", "--", "true"], "is not a whole number"),
        (["testbed", "--latency", "0.4us"], "--latency: '0.4us' is no whole number of microseconds"),
    ]:
        told = refusal(capsys, *arguments)
        assert message in told
        assert len(told) < 300


@pytest.mark.parametrize("junk", ["junk", "[]", "[1]", "3", "null", '{"hosts": 2}', '{"slow": {}}', "[" * 99999])
def test_invalid_testbed_settings_are_refused(capsys, monkeypatch, file, junk):
    monkeypatch.setenv("HPCDL_TESTBED", junk)
    for flags in (["--dry-run"], []):
        told = refusal(capsys, "run", file, *flags)
        assert told.startswith("hpcdl: HPCDL_TESTBED: ")
        assert "describes no testbed" in told
        assert len(told) < 300


def test_a_data_folder_whose_name_is_not_text_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HPCDL_DATA", os.fsdecode(b"/data\xe9"))
    path = tmp_path / "s.toml"
    case = 'kind = "train"\nmodel = "lenet5"\nlearning_rate = 1\nranks = 1\nsteps = 1\nglobal_batch = 8'
    for dataset in ('"mnist"', '{name = "hdf5", path = "x.h5"}'):
        path.write_text(f'[suite]\nname = "s"\n[[case]]\n{case}\ndataset = {dataset}\n')
        assert "dataset: HPCDL_DATA: '/data\\udce9': not text" in refusal(capsys, "run", str(path), "--dry-run")


def test_without_a_folder_for_compiled_kernels_each_process_compiles(hpcdl):
    """numba searches a folder next to the source, in the home folder and in NUMBA_CACHE_DIR."""
    program = (
        "import numba.core.caching as caching\n"
        "for one in (*caching.CacheImpl._locator_classes, *caching.CompileResultCacheImpl._locator_classes):\n"
        "    one.from_function = classmethod(lambda *_: None)\n"
        "from hpcdl.nn.backend import backend\n"
        "from hpcdl.compression.kernels.signs import *\n"
        "print(backend('numba').name)\n"
    )
    done = subprocess.run(
        [hpcdl.python, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=False, cwd=hpcdl.folder
    )
    assert (done.stdout, done.stderr) == ("numba\n", "")


PRICES = {"network.gamma": "0", "link.alpha": "1e-6", "link.beta": "1e-9"}
UNITS = dict(zip(PRICES, ("seconds per byte", "seconds", "seconds per byte (8e-9 for 1 Gbit/s)"), strict=True))


@pytest.mark.parametrize("value", ["9" * 400, "1e308", "-1e-320", "inf", "nan", "true", '"1"', "[]", "{}"])
@pytest.mark.parametrize("key", PRICES)
def test_a_network_file_with_an_invalid_parameter_is_refused(capsys, tmp_path, file, key, value):
    network = tmp_path / "n.toml"
    network.write_text("\n".join(f"{name} = {value if name == key else price}" for name, price in PRICES.items()))
    told = refusal(capsys, "predict", file, "--network", str(network))
    assert f"n.toml: {key}: must be {UNITS[key]}, from 0 to 1, not " in told


@pytest.mark.parametrize("value", ["0", "-1", "9" * 400, "1.0", "true", '"none"'])
@pytest.mark.parametrize("key", ["network.ranks_per_host", "origin.most_ranks"])
def test_a_network_file_with_an_invalid_count_is_refused(capsys, tmp_path, file, key, value):
    network = tmp_path / "n.toml"
    network.write_text("\n".join(f"{name} = {one}" for name, one in {**PRICES, key: value}.items()))
    told = refusal(capsys, "predict", file, "--network", str(network))
    assert f"n.toml: {key}: must be a number from 1 to 2^" in told
    assert len(told) < 300 + len(str(network))
