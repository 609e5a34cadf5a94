"""hpcdl sbatch without Slurm: what the script asks for, and what is refused."""

import json
import shlex
from pathlib import Path

import pytest

from hpcdl.cases.keys import key
from hpcdl.cli import main
from hpcdl.launch.batch_script import BatchJob, SiteProfile, batch_script, report_script

SCRIPTS = sorted((Path(__file__).parents[2] / "slurm").glob("*.sbatch"))


@pytest.fixture(autouse=True)
def _no_site(tmp_path, monkeypatch):
    """Neither the user's nor the system's site profile; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path))


@pytest.fixture
def script(capsys):
    """script(options): the text that the command shows."""

    def show(*options):
        assert main(["sbatch", "quickstart", "--dry-run", *options]) == 0
        return capsys.readouterr().out

    return show


def test_the_same_command_writes_the_same_bytes_but_not_over_an_edited_script(script, tmp_path, capsys, refused):
    file, shown = tmp_path / "quickstart.sbatch", script("--nodes", "8")
    for _ in range(2):
        assert main(["sbatch", "quickstart", "--nodes", "8"]) == 0
        assert file.read_text() == shown
    file.write_text("mine")
    capsys.readouterr()
    said = refused("sbatch", "quickstart", "--nodes", "8")
    assert "-o quickstart.sbatch: another script has this name, perhaps edited" in said
    assert file.read_text() == "mine"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_shipped_script_is_what_the_command_in_its_second_line_writes(script, capsys):
    text = script.read_text()
    command = text.splitlines()[1].removeprefix("# Written by: hpcdl ")
    assert main([*shlex.split(command), "--dry-run"]) == 0
    assert capsys.readouterr().out == text


def test_one_job_uses_the_suites_numbers_of_ranks_and_several_set_them(script):
    assert "case.ranks" not in script("--nodes", "8")
    assert "#SBATCH --nodes=8" in script("--nodes", "8")
    assert ' --resume "$@" -o "$folder" &' in script("--nodes", "8")  # the last -o counts
    several = script("--nodes", "8,16")
    assert "--set case.ranks=$SLURM_NTASKS" in several
    assert "#SBATCH --nodes" not in several
    assert "#SBATCH --time" not in several  # the partition's default


def test_a_site_profile_is_in_the_script(script, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'partition = "fat"\naccount = "me"\nlauncher = "srun --mpi=pmi2"\nmodules = ["mpi 5", "python/3.11"]\n'
        'environment = "source venv/bin/activate"\n'
    )
    lines = script("--nodes", "8", "--site", "mine.toml").splitlines()
    assert {"#SBATCH --partition=fat", "#SBATCH --account=me"} <= set(lines)
    begin = lines.index("module load 'mpi 5'")
    assert lines[begin + 1 : begin + 3] == ["module load python/3.11", "source venv/bin/activate"]
    # since Slurm 22.05 srun does not have it of #SBATCH --cpus-per-task
    command = "srun --mpi=pmi2 ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} -n"
    assert any(line.startswith(f'{command} "$SLURM_NTASKS" hpcdl run quickstart') for line in lines)


def test_directives_of_the_command_replace_those_of_the_site(script, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'partition = "fat"\ndirectives = ["qos=low", "--constraint=haswell", "hold"]\n'
    )
    lines = script("--nodes", "8", "--site", "mine.toml").splitlines()
    wanted = {"exclusive", "qos=low", "constraint=haswell", "hold"}
    assert {f"#SBATCH --{option}" for option in wanted} <= {*lines}
    given = ["qos=high", "gres=gpu:a100:4", "constraint=intel&gpu", "partition=thin", "comment=a #b"]
    options = [word for text in given for word in ("--directive", text)]
    lines = script("--nodes", "8", "--site", "mine.toml", "--no-exclusive", *options).splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
    replaced = [option for option in options if option.startswith(("qos", "part", "excl"))]
    assert replaced == ["partition=thin", "qos=high"]
    assert {"gres=gpu:a100:4", "constraint='intel&gpu'", "comment='a #b'"} <= {*options}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qos = high", "must be NAME or NAME=VALUE of an option of sbatch, such as qos=high"),
        ("a=b\nrm -rf x", "cannot have characters that are not printable"),
        ("nodes=4", "use --nodes of hpcdl sbatch"),
        ("--time=1h", "use --time of hpcdl sbatch"),
        ("chdir=/tmp", "paths in the script begin in the folder where it is submitted"),
        ("chd=/tmp", "must be a whole name; did you mean 'chdir'?"),
        ("no-req", "must be a whole name; did you mean 'no-requeue'?"),
        ("gres=gpu:4", "--gpus-per-node: gres=gpu:4 asks for the GPUs of a node already"),
        ("signal=TERM@60", "must be signal=B:USR1@SECONDS, which the script waits for"),
    ],
)
def test_a_wrong_directive_is_refused_in_one_line_before_anything_is_written(tmp_path, refused, text, message):
    (tmp_path / "mine.toml").write_text(f"directives = [{json.dumps(text)}]\n")
    for option in (f"--directive={text}", "--site=mine.toml"):
        said = refused("sbatch", "quickstart", "--nodes", "8", "--gpus-per-node", "1", option)
        # the profile refuses a line end before it is read as a directive
        assert (message in said) == (text != "a=b\nrm -rf x" or "site" not in option)
    assert not list(tmp_path.glob("*.sbatch"))


def test_ranks_and_the_report_run_in_a_container(script, tmp_path):
    lines = script("--nodes", "8", "--container", "my image.sif", "--gpus-per-node", "1")
    assert "\nmpirun -n \"$SLURM_NTASKS\" apptainer exec --nv 'my image.sif' hpcdl run quickstart" in lines
    assert "for program in apptainer mpirun; do" in lines
    (tmp_path / "mine.toml").write_text('container = "site.sif"\n')
    assert " apptainer exec site.sif hpcdl run " in script("--nodes", "8", "--site", "mine.toml")
    site = SiteProfile(container="site.sif", directives=("signal=B:USR1@600", "gres=gpu:1"))
    report = report_script(BatchJob("quickstart", "quickstart", "", (1, 2)), site)
    assert "\napptainer exec site.sif hpcdl report" in report
    assert "signal" not in report, "it would end the report"


def test_a_container_has_the_gpus_that_a_directive_asks_for(script, tmp_path):
    options = ["--nodes", "8", "--container", "a.sif", "--set", "case.backend='cupy'"]  # the nodes check the cases
    for text in ("gres=gpu:a100:4", "gpus=8", "--gpus-per-task=1", "tres-per-task=gres/gpu:1"):
        assert " apptainer exec --nv a.sif " in script(*options, f"--directive={text}")
    (tmp_path / "mine.toml").write_text("directives = 'gpus=8'\n")
    assert " apptainer exec --nv a.sif " in script(*options, "--site=mine.toml")
    assert "--nv" not in script("--nodes", "8", "--container", "a.sif", "--directive", "constraint=gpu")


def test_a_directive_replaces_its_opposite(script):
    options = ["--nodes=8", "--directive=no-requeue", "--directive=oversubscribe", "--directive=signal=B:USR1@600"]
    text = script(*options)
    assert "#SBATCH --signal=B:USR1@600\n#SBATCH --no-requeue\n#SBATCH --oversubscribe\n" in text
    assert "# 600 s before the time limit" in text
    assert not [word for word in ("--requeue", "--exclusive", "scontrol", "finished_cases") if word in text]
    text = script(*options, "--directive=requeue")
    assert "#SBATCH --requeue\n" in text
    assert "#SBATCH --no-requeue\n" not in text


@pytest.mark.parametrize(
    ("text", "end"),
    [
        *(("1h", "did you mean 60?"), ("1h 30m", "did you mean 90?"), ("90s", "did you mean 1:30?")),
        *((text, "0: no limit") for text in ("1:", "1-2:3:4:5", "9999999999", "5\n")),
    ],
)
def test_a_time_limit_that_is_none_of_slurms_forms_is_refused_with_the_nearest(text, end, refused):
    err = refused("sbatch", "quickstart", "--nodes", "8", "--time", text)
    assert "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and days-hours:" in err
    assert err.endswith(f"; {end}\n")


def test_no_name_of_a_suite_changes_the_code_of_a_script():
    """Templates have no marker that a name may contain."""
    site = SiteProfile(container="HPCDL NAME {name}.sif", account="a #b")
    for write in (batch_script, report_script):
        plain, odd = (write(BatchJob("s", name, "", (1, 2)), site) for name in ("s", "HPCDL-NAME.PAGE"))
        assert odd == plain.replace("hpcdl-s", "hpcdl-HPCDL-NAME.PAGE").replace("runs/s-", "runs/HPCDL-NAME.PAGE-")
        assert "apptainer exec 'HPCDL NAME {name}.sif' hpcdl " in odd
        assert "#SBATCH --account='a #b'" in odd


def test_without_slurm_nothing_is_submitted(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/absent")
    assert "--submit: sbatch is not found" in refused("sbatch", "quickstart", "--nodes", "8", "--submit")
    assert not list(tmp_path.glob("*.sbatch"))


@pytest.fixture
def submitted(tmp_path, monkeypatch, capsys):
    """submitted(*answers, options): code, stdout and stderr with a sbatch that answers so, and its arguments."""

    def submit(*answers, options=()):
        folder = tmp_path / "bin"
        folder.mkdir()
        for number, answer in enumerate(answers):
            (folder / f"answer{number}").write_bytes(answer)
        program = folder / "sbatch"
        program.write_text(
            f'#!/bin/sh\ncd {folder}; set -- "$@"; echo "$@" >>words\n. ./answer$(($(wc -l <words) - 1))\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        code = main(["sbatch", "quickstart", "--submit", *options])
        out, err = capsys.readouterr()
        return code, out, err, (folder / "words").read_text().splitlines()

    return submit


def test_jobs_and_their_report_are_submitted_to_the_cluster_of_the_first(submitted, tmp_path):
    (tmp_path / "site.toml").write_text('account = "me"\nmodules = ["mpi"]\nenvironment = ["source venv"]\n')
    banner = b"echo 'Welcome to 2026'\necho '17;big.x'\necho 'queue: 40 jobs' >&2"
    options = ["--nodes", "8,16", "--launches", "2", "--site", "site.toml", "-o", "job.sbatch"]
    code, out, err, words = submitted(banner, b"echo '18;big.x'", b"echo 19", options=options)
    assert (code, err) == (0, "sbatch: queue: 40 jobs\n")
    assert out.splitlines()[2:4] == ["job 17: 8 nodes", "job 18: 16 nodes"]
    runs = "runs/quickstart-8-nodes-17_1 runs/quickstart-8-nodes-17_2 runs/quickstart-16-nodes-18_1 "
    runs = f"job-report.sbatch {runs}runs/quickstart-16-nodes-18_2"
    assert words == [
        "--parsable --nodes=8 job.sbatch",
        "--parsable --clusters=big.x --nodes=16 job.sbatch",
        f"--parsable --clusters=big.x --dependency=afterany:17:18 {runs}",
    ]
    report = (tmp_path / "job-report.sbatch").read_text().splitlines()
    assert report[0] == "#!/bin/bash"  # sh has no source
    assert {"#SBATCH --account=me", "module load mpi", "source venv"} <= set(report)


def test_a_study_that_is_submitted_in_part_can_go_on(submitted):
    full = b"printf 'sbatch: error: \\351 too many jobs\\n' >&2; exit 1"
    code, out, err, words = submitted(b"echo 17", b"echo 18", full, options=["--nodes", "8,16,32"])
    assert (code, len(words)) == (1, 3)
    assert "job 18: 16 nodes" in out
    runs = "runs/quickstart-8-nodes-17 runs/quickstart-16-nodes-18 runs/quickstart-32-nodes-JOB32"
    assert err.splitlines() == [
        "hpcdl: sbatch --nodes=32 quickstart.sbatch: exit code 1: sbatch: error: \\xe9 too many jobs",
        "submitted: 17, 18; scancel them, or go on, with the new job's number for JOB32:",
        "    sbatch --nodes=32 quickstart.sbatch",
        f"    sbatch --dependency=afterany:17:18:JOB32 quickstart-report.sbatch {runs}",
    ]


@pytest.mark.parametrize("answer", ["", "Submitted batch job 17 on cluster big", "Welcome", "17 18", "2026\n17"])
def test_what_is_no_number_of_a_job_is_refused(submitted, answer, tmp_path):
    code, out, err, words = submitted(f"printf '{answer}'".encode(), options=["--nodes", "8"])
    assert (code, len(words)) == (1, 1)
    assert "removed: quickstart.sbatch\nremoved: quickstart-report.sbatch\n" in out
    assert not (tmp_path / "quickstart.sbatch").exists()
    assert "job " not in out
    assert err.count("\n") == 1
    assert f"printed {answer!r}, no job's number; squeue --me shows if there is a job" in err


@pytest.mark.parametrize("word", ["a\nrm -rf x", "a\rb", "\x1b[2J", "a\u2028b"])
@pytest.mark.parametrize("option", ["--case", "--set", "suite"])
def test_no_character_that_ends_a_line_reaches_the_script(option, word, tmp_path, refused):
    """A line end after the comment with the command would begin a command of its own."""
    suite = tmp_path / "mine.toml"
    suite.write_text("[suite]\nname = 'x'\n[[case]]\nkind = 'collective'\nranks = 2\nmessage_bytes = 64\n")
    given = {"--case": ["--case", "*", "--case", f"*[!{word}]"], "--set": ["--set", f"case.ranks = 2 #{word}"]}
    if option == "suite":
        suite = suite.rename(tmp_path / f"{word.replace('/', '')}.toml")
    assert word not in refused("sbatch", suite, "--nodes", "2", "--dry-run", *given.get(option, []))


def test_a_dataset_that_this_machine_lacks_is_a_warning_and_other_faults_are_not(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("HPCDL_DATA", raising=False)
    monkeypatch.setattr("hpcdl.data.binary_files.DEBIAN", tmp_path / "nowhere")
    key._opened.cache_clear()
    write = ["sbatch", "firecaffe", "--nodes", "8", "--dry-run"]
    assert main(write) == 0
    warning = "warning: the job needs a dataset that this machine lacks: fashion_mnist: not found in"
    assert capsys.readouterr().err.startswith(f"hpcdl: {warning} {tmp_path}")
    assert main([*write, "--set", "case.global_batch=17"]) == 2
    assert "17 is not divisible by ranks = 2" in capsys.readouterr().err
    key._opened.cache_clear()
