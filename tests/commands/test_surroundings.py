"""Closed streams, unusual locales, names and variables give a result or one line, never a traceback."""

import os

EXCHANGE = """
question = "Größe in µs?"
[[case]]
kind = "pairwise"
message_bytes = 64
repetitions = 10
warmup = 1
"""

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_closed_streams_do_not_end_a_run(hpcdl):
    hpcdl.suite(EXCHANGE)
    for command in ("list models >&-", "run tiny.toml -o run <&- >&- 2>&-"):
        done = hpcdl.run(["sh", "-c", f'"$@" {command}', "sh", *hpcdl.hpcdl()])
        assert (done.returncode, done.stderr) == (0, "")
    assert "fabric" in (hpcdl.folder / "run/report.md").read_text(encoding="utf-8")


def test_a_locale_without_a_letter_and_a_variable_that_is_not_text_give_a_report(hpcdl):
    """The run reads no standard input: a shell's loop over lines would lose lines."""
    hpcdl.suite(EXCHANGE)
    (hpcdl.folder / "lines").write_text("the next line\n")
    with (hpcdl.folder / "lines").open() as lines:
        for command in (["run", "tiny.toml", "-o", "run"], ["report", "run"]):
            done = hpcdl(*command, stdin=lines, **ASCII, OMP_PLACES=os.fsdecode(b"\xe9"))
            assert done.returncode == 0, done.stderr
            assert "Gr\\xf6\\xdfe in \\xb5s?" in done.stdout
        assert lines.read() == "the next line\n"
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


def test_without_a_folder_for_compiled_kernels_each_process_compiles(hpcdl):
    """numba searches a folder next to the source, in the home folder and in NUMBA_CACHE_DIR."""
    program = (
        "import numba.core.caching as caching\n"
        "for one in (*caching.CacheImpl._locator_classes, *caching.CompileResultCacheImpl._locator_classes):\n"
        "    one.from_function = classmethod(lambda *_: None)\n"
        "from hpcdl.nn.backend import backend\n"
        "from hpcdl.compression.kernels.two_values import *\n"
        "print(backend('numba').announcement('float32'))\n"
    )
    done = hpcdl.run([hpcdl.python, "-c", program])
    says = "compiling the float32 kernels of numba (in each run, about 1 minute; NUMBA_CACHE_DIR"
    assert done.stdout.startswith(says)
    assert done.stderr == ""


def test_an_empty_folder_for_compiled_kernels_is_announced(hpcdl):
    program = "from hpcdl.nn.backend import backend; print(backend('numba').announcement('float64'))"
    done = hpcdl.run([hpcdl.python, "-c", program], NUMBA_CACHE_DIR=str(hpcdl.folder / "empty"))
    assert done.stdout.startswith(
        "compiling the float64 kernels of numba (once on this kind of processor, about 1 minute; "
        f"cached in {hpcdl.folder / 'empty'}"
    )
