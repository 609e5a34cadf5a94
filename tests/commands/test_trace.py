"""hpcdl trace: files for other tools, and what is refused."""

import pytest

from hpcdl.cli import main

SUITE = """
[suite]
name = "s"

[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
learning_rate = 0.05
training = {name = "synchronous", bucket_bytes = 0}
aggregation = ["ring", "tree"]
ranks = 3
global_batch = 12
steps = 4
network = "ethernet-1g"
flops = 1e9
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two simulated cases."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "s.toml").write_text(SUITE)
    assert main(["run", str(folder / "s.toml"), "-o", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize(("form", "launches"), [("perfetto", 2), ("goal", 1)])
def test_a_file_is_written_and_its_contents_are_counted(run, tmp_path, capsys, form, launches):
    for number in range(1, launches + 1):
        (tmp_path / f"launch-{number}").symlink_to(run)
    file = tmp_path / "x"
    options = ["--format", form, "--case", "*ring*", "--steps", "1-2"]
    assert main(["trace", str(tmp_path), "-o", str(file), *options]) == 0
    out = capsys.readouterr().out
    assert "24 messages" in out  # 2 steps, 3 ranks, 2(p - 1) messages
    assert (", launch 1 of 2: " in out) == (launches == 2)
    assert file.stat().st_size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "--case: choose one of 2 cases, such as 'train-lenet5-digits-synchronous(bucket_bytes=0)-ring-p3"),
        ("--case nothing", "--case 'nothing' matches none of the cases"),
        ("--case *ring* --ranks 2-3", "has no rank 3"),
        ("--case *ring* --steps 70000", "has no step 70000"),
        ("--case *ring* --ranks 3-1", "'3-1' is no range such as 0-7"),
        ("--case *ring* --format gaol", "gaol"),
    ],
)
def test_what_a_run_does_not_have_is_refused(run, refused, options, message):
    assert message in refused("trace", run, "-o", "x", *options.split())
