"""Commands other than ``run``: output, exit codes and error messages."""

import json
import re
import subprocess
import tomllib

import pytest

from hpcdl.cases.keys.suite_tables import suites
from hpcdl.cli import main
from hpcdl.commands.list import SUBJECTS
from hpcdl.report.formats.writers import coloured
from hpcdl.report.render import render


def test_help_names_the_commands_and_the_exit_codes(hpcdl):
    ended = hpcdl.here("--help")
    assert ended.returncode == 0
    for word in ("run", "report", "list", "check", "75", "78"):
        assert f"{word} " in ended.stdout


def test_list_as_text_and_as_json(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    for what in SUBJECTS:
        assert main(["list", what]) == 0
        text = capsys.readouterr().out.splitlines()
        assert main(["list", what, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document.keys() == {"schema", what}
        assert document["schema"] == 1
        assert text[0] == f"{what}:"
        named = [line for line in text[1:] if line[2] != " "]
        assert [line.split()[0] for line in named] == [entry["name"] for entry in document[what]]
        told = [line.strip() for line in text[1:] if line not in named]
        settings = [entry["settings"] for entry in document[what] if entry.get("settings")]
        assert [re.findall(r"(\w+) [=(]", line) for line in told] == [list(one) for one in settings]
        assert all(entry["summary"] for entry in document[what])
    assert main(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema", *SUBJECTS}
    assert document["networks"][0].keys() >= {"alpha_seconds", "beta_seconds_per_byte", "gamma_seconds_per_byte"}
    columns = "batch parameters multiply_adds_per_image weight_bytes data_bytes forward_backward_flop "
    columns += "activation_bytes shape classes"
    for entry in document["models"]:
        assert entry.keys() >= {*columns.split()} or entry["name"] == "layers"


def test_list_sections_has_what_answer_and_compare_can_name(capsys):
    main(["list", "sections", "--json"])
    entries = json.loads(capsys.readouterr().out)["sections"]
    answers, measures = ({one["name"] for one in entries if one["key"] == key} for key in ("answer", "compare"))
    assert {"step", "images_per_second", "final_accuracy"} <= measures
    named = set()
    for file in suites().values():
        answer = tomllib.loads(file.read_text())["suite"].get("answer", [])
        named |= {answer} if isinstance(answer, str) else {*answer}
    assert len(named) > 10 and named <= answers
    assert not answers & {"verdict", "settings"}  # sections without an answer


def test_lists_fit_80_columns_of_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["list"], *(["list", what] for what in SUBJECTS), ["help"]):
        assert main(words) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80, words


def test_check_in_a_job_is_of_all_its_ranks(each):
    ended = each("check", under=each.mpirun(3))
    assert ended.returncode == 0, ended.stdout
    assert not ended.stderr
    subjects = [line.split(":")[0].split(maxsplit=1)[1] for line in ended.stdout.splitlines()]
    assert len(set(subjects)) == len(subjects)
    assert {"MPI", "transport within a host", "clock skew", "ranks and cores", "disk"} <= set(subjects)
    assert "3 ranks on 1 host; a sum over them is right" in ended.stdout
    assert re.search(r"^ok +transport within a host: (sysv|posix|sm|cma|xpmem)", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", ["list --json", "run s.toml --dry-run", "--help"])
def test_a_closed_pipe_ends_the_output_silently(hpcdl, arguments):
    """As with ``| head -1``."""
    hpcdl.suite('[[case]]\nkind = "pairwise"\nmessage_bytes = [' + ",".join(map(str, range(5000))) + "]", name="s")
    with subprocess.Popen(
        hpcdl.hpcdl(*arguments.split()),
        cwd=hpcdl.folder,
        env=hpcdl.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        writer.stdout.close()
        assert writer.stderr.read() == b""


def test_a_terminal_gets_the_summary_and_a_pipe_gets_markdown(hand, capsys, monkeypatch):
    run = hand.train([[2.0] * 8]).read()
    assert main(["report", str(hand.folder)]) == 0
    assert capsys.readouterr().out.startswith("# hpcdl: ")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["report", str(hand.folder)]) == 0
    assert capsys.readouterr().out == f"{coloured(render([run], 'summary'))}\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["report", str(hand.folder)]) == 0
    assert capsys.readouterr().out == f"{render([run], 'summary')}\n"
    assert main(["report", str(hand.folder), "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize(
    ("words", "completed"),
    [("run qui", "quickstart"), ("check halv", "halving_doubling"), ("run quickstart --case train", "-ring-p1-")],
)
def test_a_shell_completes_suites_schemes_and_cases(hpcdl, words, completed):
    line = f"hpcdl {words}"
    variables = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    shell = ["bash", "-c", '"$@" 8>&1 9>/dev/null >/dev/null', "-"]
    assert completed in hpcdl.run([*shell, *hpcdl.hpcdl()], **variables).stdout


def test_the_table_on_a_terminal(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    main(["list", "models"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "227x227x3   60,965,224 parameters   0.7244 GMAC  AlexNet: five convolutions" in lines["alexnet"]
    main(["list", "models", "--batch", "1024"])
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    expected = "224x224x3 batch 1024 |W| 30.4 MB |D| 5,792.7 MB 6.760 TFLOP outputs"
    assert lines["nin"][1:-2] == expected.split()
