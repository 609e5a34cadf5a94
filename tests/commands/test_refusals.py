"""Wrong usage ends with exit code 2 and one line that names it, before anything has run."""

import os
import shlex

import h5py
import numpy as np
import pytest

from hpcdl.cli import commands

from .conftest import TRAIN

FINE = f"{TRAIN}ranks = 2\nsteps = 3\n"
NINES = "9" * 5000
"""More digits than Python converts."""
ENDINGS = ".md or .html or .tex or .csv or .json or .svg or .pdf or .png or .json.xz"
TABLE = {
    "hpcdl": [
        ("", f"hpcdl: no command; valid names: {', '.join(sorted(commands()))}"),
        ("rnu s.toml", "hpcdl: rnu: unknown command; did you mean 'run'?"),
        ("--versoin", "hpcdl: --versoin: unknown option; did you mean '--version'?"),
        ("-x run", "hpcdl: -x: unknown option; hpcdl --help lists all options"),
    ],
    "run": [
        ("", "hpcdl run: the following arguments are required: SUITE"),
        ("--ranksx 3", "hpcdl run: --ranksx: unknown option; did you mean '--ranks'?"),
        ("s.toml --dry-rum", "hpcdl run: --dry-rum: unknown option; did you mean '--dry-run'?"),
        ("s.toml t.toml", "hpcdl run: t.toml: one argument too many"),
        ("s.toml -n", "hpcdl run: -n/--ranks: expected one argument"),
        ("s.toml -n two", "hpcdl run: -n/--ranks: 'two' is not a whole number"),
        (f"s.toml -n {NINES[:50]}", f"-n/--ranks: {NINES[:50]} is out of range"),
        ("s.toml -n 1", "-n 1: the suite 's' has cases of 2 ranks; use --case or --set case.ranks=..."),
        ("s.toml -n 0", "-n 0: must be at least 1"),
        ("s.toml --case *tree*", "--case '*tree*' matches none of the cases, such as 'train-lenet5-digits-"),
        ("s.toml --set suite.answer=scalin", "[suite]: answer: unknown 'scalin'; did you mean 'scaling'?"),
        ("s.toml --launches 0 --dry-run", "must be from 1 to 1000"),
        ("s.toml --mix-environments --dry-run", "--mix-environments: only with --resume"),
        ("s.toml --case-timeout 0", "--case-timeout 0: must be at least 1, in seconds"),
        ("''", "hpcdl run: SUITE: the name is empty"),
        ("s.toml -o ''", "hpcdl run: -o: the name is empty"),
        ("s.toml -o s.toml", "-o s.toml: cannot be written to: File exists"),
        ("s.toml -o /proc/nobody-may", "-o /proc/nobody-may: cannot be written to: "),
        ("s.toml -o old", "-o old: already has a run; add --resume or choose another folder"),
        ("s.toml --resume", "--resume: runs/ has no unfinished run of the suite 's'; name its folder with -o"),
    ],
    "bench": [
        ("-e 1Q", "-e 1Q: must be a size in bytes"),
        ("-b 1M -e 1K", "-e 1K is smaller than -b 1M"),
        ("-f 1", "by a factor of at least 2"),
        ("-b 9", "message_bytes: 9 is not a multiple of float32's 4 bytes"),
        ("-b 1G -e 1M", "hpcdl: -e 1M is smaller than -b 1G"),
        ("-p 3", "hpcdl bench: -p: unknown option; hpcdl bench --help lists all options"),
        ("--gres gpu:1", "hpcdl bench: --gres: unknown option; hpcdl help batch is about it"),
        ("-a rign", "unknown 'rign'; did you mean 'ring'?"),
        ("--delays 1:0.2,0:0.3", "--delays 1:0.2,0:0.3: must be the seconds of all ranks, such as 0.3,0.2,0"),
        ("--delays 0,x", "or RANK:SECONDS of one, such as 1:0.2"),
        ("allreduc", "unknown 'allreduc'; did you mean 'allreduce'?"),
    ],
    "tune": [
        ("allreduc", "allreduc: no such suite file"),
        ("allreduce --launches 2", "--launches from 3 on"),
        ("s.toml", "needs collectives or replays"),
        ("s.toml -b 16", "-b: is for a collective; the suite s.toml has its own"),
        ("s.toml -a ring", "-a: is for a collective; the suite s.toml has its own"),
    ],
    "list": [
        ("agregation", "hpcdl list: SUBJECT: unknown 'agregation'; did you mean 'aggregation'?"),
        *((f"models --batch={batch}", "hpcdl list: --batch: ") for batch in ("0", "64,-1", "many", "64,", "")),
        (f"models --batch 256,{NINES}", "is not a whole number"),
        ("models --batch 2000000000", "--batch: 2000000000 is not from 1 to 1000000000"),
        *((f"{one} --batch 64", "hpcdl: --batch: only for `hpcdl list models`\n") for one in ("", "optim")),
    ],
    "layers": [
        ("s.toml --shape 3x3", "s.toml: --shape is for networks of hpcdl list models"),
        ("vit_b16 --shape 22", "hpcdl: vit_b16: 22 is no shape of 3 sides, such as (224, 224, 3)"),
        ("llama3_8b --shape 0", "hpcdl: llama3_8b: 0 is no shape of 1 sides, such as (8192,)"),
        ("lenet5 --shape 2x2x1", "hpcdl: lenet5: pool2: kernel 2x2 is larger than the padded image 1x1"),
        ("lenet5 --shape axb", "hpcdl layers: --shape: 'a' is not a whole number"),
    ],
    "report": [
        (os.fsdecode(b"r\xe9"), "hpcdl: r\\udce9: no such file"),
        ("nowhere", "hpcdl: nowhere: no such file\n"),
        ("old", "hpcdl: old: no run.h5 and no finished case in parts/\n"),
        ("damaged", "hpcdl: damaged/run.h5: not a trace of hpcdl\n"),
        *((f"old -o {x}", f"-o {x}: must end in {ENDINGS}\n") for x in ("x.htlm", "x", "x.json.gz")),
        ("old --json -o x.md", "-o x.md: must end in .json\n"),
    ],
    "predict": [
        ("quickstart --network gemini --case *googlenet*p2* --parallelism --jitter .1", "--jitter: changes trai"),
        ("s.toml --network ethernet10g", "did you mean 'ethernet-10g'?"),
        ("s.toml --network gemini --ranks 1000000", "--ranks 1000000: must be at most 131072"),
        ("s.toml --network gemini --ranks-per-host 0", "--ranks-per-host: ranks_per_host must be"),
        ("quickstart --network titan --save x.toml", "cannot hold the topology of titan"),
        ("no.toml --network gemini", "no such suite file"),
        ("nowhere --network gemini", "nowhere: no such file"),
        *(
            (f"s.toml --network gemini --ranks {ranks}", f"--ranks {ranks}: must be ascending")
            for ranks in ("4,2", "0", "2,2", "two", "2,")
        ),
    ],
    "history": [
        ("old --stale yesterday", "hpcdl history: --stale: 'yesterday' is no time in us, ms, s, h or d"),
        ("old --switches none/x", "--switches none/x: cannot be read: No such file"),
        ("old/parts --metrics none/x", "--metrics none/x: cannot be written: No such file"),
        ("old -o x.pdf", "-o x.pdf: must end in .html\n"),
    ],
    "sbatch": [
        ("quickstart --nodes 0", "0: must be at least 1"),
        ("quickstart --nodes 2,x", "'x' is not a whole number"),
        ("quickstart --nodes 2,2", "2,2: a number is there twice"),
        ("quickstart --nodes 1", "--nodes 1: the job has 1 rank, but 'quickstart' needs 8"),
        ("quickstart --nodes 8 --site absent.toml", "absent.toml: cannot be read"),
        ("quickstart --nodes 8 -o absent/a.sbatch", "-o absent/a.sbatch: cannot be written"),
    ],
    "testbed": [
        ("--hosts 2 -- x --rate 3", "hpcdl testbed: the following arguments are required: --rate"),
        ("--latency 0.4us", "--latency: '0.4us' is no whole number of microseconds"),
        ("--hosts 0 --rate 1gbit", "--hosts 0: must be from 1 to 64"),
        ("--hosts 4 --rate 200", "--rate 200: must be a rate with a unit, such as 200mbit or 1gbit"),
        ("--hosts 4 --rate 1kbit", "--rate 1kbit: must be from 100 kbit/s to 100 Gbit/s, not 1 kbit/s"),
        ("--hosts 4 --rate 100mbps", "--rate 100mbps: bits or bytes? write 100mbit, or 800mbit for bytes"),
        ("--hosts 1 --rate 1gbit --trunk 1gbit", "one host is on one switch; --hosts must be at least 2"),
        *(
            (f"--hosts 4 --rate 1gbit {options}", message)
            for options, message in {
                "--slow host1:-1mbit": "--slow host1:-1mbit: must be a rate",
                "--slow host5:1mbit": "host5:1mbit: there is no 'host5'; available: host1 to host4",
                "--slow host2": "--slow host2: write HOST:RATE, such as host1:50mbit",
                "--slow-cpu host9:0.5": "--slow-cpu host9:0.5: there is no 'host9'; available: host1",
                "--slow-cpu host2:80%": "--slow-cpu host2:80%: must be a number of cores from 0.01",
                "--latency 11s": "--latency: must be at most 10 s, not 11 s",
                "--slow host2:5mbit --slow host2:1gbit": "host2 already has 5mbit",
            }.items()
        ),
    ],
}
"""Command lines by command, and a part of the line that refuses each."""


@pytest.fixture
def files(tmp_path):
    """A suite, a folder with an empty run, and one with a damaged run."""
    (tmp_path / "s.toml").write_text(f'[suite]\nname = "s"\n{FINE}')
    (tmp_path / "old/parts").mkdir(parents=True)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/run.h5").write_text("not at all")
    return tmp_path


@pytest.mark.parametrize("command", TABLE)
def test_wrong_usage_is_refused_in_one_line(refused, files, command):
    for line, message in TABLE[command]:
        told = refused(*([] if command == "hpcdl" else [command]), *shlex.split(line))
        assert message in told
        assert len(told) < 900
    assert sorted(path.name for path in files.iterdir()) == ["damaged", "old", "s.toml"]


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_one_rank_of_a_job_reports_wrong_usage(refused, monkeypatch, rank, lines):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", rank)
    for words in (["--versoin"], ["run"], ["run", "s.toml", "-n", "two"]):
        refused(*words, lines=lines)


def test_a_dry_run_finds_wrong_data(refused, files):
    where = "hpcdl: s.toml: [[case]] 1: dataset: "

    def refusal(dataset):
        (files / "s.toml").write_text('[suite]\nname = "s"\n' + FINE.replace('"digits"', dataset))
        return refused("run", "s.toml", "--dry-run").removeprefix(where)

    images = '{name = "hdf5", path = "images.h5", crop = 224}'
    (files / "images.h5").write_bytes(b"not at all")
    assert refusal(images).startswith("images.h5: cannot be read: not HDF5")
    with h5py.File(files / "images.h5", "w", locking=False) as file:
        file["train/images"] = np.zeros((4, 8, 8, 3), np.uint8)
    assert refusal(images) == "images.h5: lacks train/images or train/labels\n"
    (files / "test.bin").write_bytes(b"")
    assert refusal('{name = "cifar100", path = "."}').startswith("train.bin: missing")


def test_a_data_folder_whose_name_is_not_text_is_refused(refused, files, monkeypatch):
    monkeypatch.setenv("HPCDL_DATA", os.fsdecode(b"/data\xe9"))
    for dataset in ('"mnist"', '{name = "hdf5", path = "x.h5"}'):
        (files / "s.toml").write_text('[suite]\nname = "s"\n' + FINE.replace('"digits"', dataset))
        assert "dataset: HPCDL_DATA: '/data\\udce9': not text" in refused("run", "s.toml", "--dry-run")


def test_invalid_testbed_settings_are_refused(refused, files, monkeypatch):
    for junk in ("junk", "[]", "[1]", "3", "null", '{"hosts": 2}', '{"slow": {}}', "[" * 99999):
        monkeypatch.setenv("HPCDL_TESTBED", junk)
        for flags in (["--dry-run"], []):
            told = refused("run", "s.toml", *flags)
            assert told.startswith("hpcdl: HPCDL_TESTBED: ") and "describes no testbed" in told
            assert len(told) < 300


PRICES = {"network.gamma": "0", "link.alpha": "1e-6", "link.beta": "1e-9"}
UNITS = dict(zip(PRICES, ("seconds per byte", "seconds", "seconds per byte (8e-9 for 1 Gbit/s)"), strict=True))


@pytest.mark.parametrize("key", [*PRICES, "network.ranks_per_host", "origin.most_ranks"])
def test_a_network_file_with_an_invalid_number_is_refused(refused, files, key):
    wanted = f"{UNITS[key]}, from 0 to 1, not " if key in UNITS else "a number from 1 to 2^"
    words = ["1e308", "inf", "nan", '"1"', "[]", "{}"] if key in UNITS else ["0", "1.0", '"none"']
    for value in ["9" * 400, "-1", "-1e-320", "true", *words]:
        prices = {**PRICES, key: value}
        (files / "n.toml").write_text("\n".join(f"{name} = {price}" for name, price in prices.items()))
        told = refused("predict", "s.toml", "--network", "n.toml")
        assert f"n.toml: {key}: must be {wanted}" in told
        assert len(told) < 300
