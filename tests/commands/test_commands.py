"""Commands other than ``run``: output, exit codes and error messages."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from hpcdl.cases.keys.suite_tables import suites
from hpcdl.cli import main
from hpcdl.commands.list import SUBJECTS, catalogue
from hpcdl.commands.parts.topics import SYNONYMS, pages
from hpcdl.report.formats.writers import coloured
from hpcdl.report.render import render

ROOT = Path(__file__).parents[2]


def test_help_names_the_commands_and_the_exit_codes(hpcdl):
    shown = hpcdl.here("--help").stdout
    assert [word for word in ("run", "report", "list", "check", "75", "78") if f"{word} " not in shown] == []


def test_list_as_text_and_as_json(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    for what in SUBJECTS:
        assert main(["list", what]) == 0
        text = capsys.readouterr().out.splitlines()
        assert main(["list", what, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document.keys() == {"schema", what}
        assert document["schema"] == 1
        headings = [line for line in text if not line.startswith(" ")]
        assert what == "suites" or headings == [f"{what}:"]
        named = [line for line in text if line not in headings and line[2] != " "]
        assert [line.split()[0] for line in named] == [entry["name"] for entry in document[what]]
        told = [line.strip() for line in text if line not in [*headings, *named]]
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


def test_the_index_has_a_line_for_each_subject(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20
    rows = [line.split() for line in lines if "   hpcdl list " in line]
    assert [row[0] for row in rows] == [row[-1] for row in rows] == [*SUBJECTS]
    for subject, count, *_ in rows:
        assert int(count) == len({entry["name"] for entry in catalogue(subject)}), subject


def test_suites_are_listed_in_the_groups_of_the_reports(capsys):
    reports = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
    pages = {report["name"]: report.get("group") for report in reports}
    group = {report["name"]: pages[report.get("of", report["name"])] for report in reports}
    listed = {entry["name"]: entry["group"] for entry in catalogue("suites")}
    assert listed.keys() == suites().keys() == {file.stem for file in (ROOT / "suites").glob("*.toml")}
    assert all(entry["summary"].endswith("?") for entry in catalogue("suites"))
    assert {name: group.get(name, listed[name]) for name in listed} == listed
    apart = {listed[name] for name in listed.keys() - group.keys()}
    assert len(apart) == 1 and not apart & {*pages.values()}
    main(["list", "suites"])
    lines = capsys.readouterr().out.splitlines()
    assert {line.rstrip(":") for line in lines if not line.startswith(" ")} == {*listed.values()}


def test_words_of_the_field_lead_to_a_page(capsys):
    words = {
        "batch": "slurm account gres mpirun partition",
        "collectives": "osu nccl OSU",
        "cluster": "drain cron",
    }
    for topic, others in {**words, "gpu": "gpu cuda", "predict": "networks"}.items():
        assert main(["help", topic]) == 0
        page = capsys.readouterr().out
        for word in others.split():
            assert main(["help", word]) == 0
            assert capsys.readouterr().out.removeprefix(f"hpcdl help {topic}:\n\n") == page


def test_no_synonym_is_a_topic_or_leads_to_two():
    words = [word for line in SYNONYMS.values() for word in line.split()]
    assert len(words) == len({*words})
    assert not {*words} & pages().keys()
    assert SYNONYMS.keys() <= pages().keys()


def test_a_page_is_rendered_for_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for topic in pages():
        assert main(["help", topic]) == 0
        text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert max(map(len, text.splitlines())) <= 80, topic
        assert not re.search(r"^#+ |^```|\| --- \||<!--", text, re.MULTILINE), topic


def test_a_page_stays_markdown_in_a_pipe_and_without_rich(capsys, monkeypatch):
    raw = pages()["cluster"].read_text(encoding="utf-8")
    main(["help", "cluster"])
    assert capsys.readouterr().out == raw
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("hpcdl.commands.help.find_spec", lambda name: None)
    main(["help", "cluster"])
    assert capsys.readouterr().out == raw


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


def test_lists_fit_80_columns_of_a_terminal_and_have_no_markup_of_docstrings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["list"], *(["list", what] for what in SUBJECTS), ["help"]):
        assert main(words) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80, words
        assert not re.search(r"``|:\w+:`", text), words


def test_check_in_a_job_is_of_all_its_ranks(each):
    ended = each("check", under=each.mpirun(3))
    assert ended.returncode == 0, ended.stdout
    assert not ended.stderr
    subjects = [line.split(":")[0].split(maxsplit=1)[1] for line in ended.stdout.splitlines()]
    assert len(set(subjects)) == len(subjects)
    assert {"MPI", "transport within a host", "clock skew", "ranks and cores", "disk"} <= set(subjects)
    assert "3 ranks on 1 host; a sum over them is right" in ended.stdout
    assert re.search(r"^ok +transport within a host: (sysv|posix|sm|cma|xpmem)", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", ["list --json", "--help"])
def test_a_closed_pipe_ends_the_output_silently(hpcdl, arguments):
    """As with ``| head -1``."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": hpcdl.environment()}
    with subprocess.Popen(hpcdl.hpcdl(*arguments.split()), **streams) as writer:
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
