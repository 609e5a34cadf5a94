"""One line per size and scheme, as OSU's benchmarks and nccl-tests print them."""

import re

import pytest

from hpcdl.cli import main


def rows(output):
    """Return (bytes, scheme, p50, p99, algbw, busbw, correct) of each line that is not a comment."""
    return [line.split() for line in output.splitlines() if not line.startswith("#")]


def test_every_size_and_scheme_has_its_line(either):
    ended = either(
        "bench", "reduce_scatter", "-b", "24", "-e", "6K", "-f", "16", "-a", "ring,native", "-n", "3", "-r", "3"
    )
    assert ended.returncode == 0, ended.stderr
    found = rows(ended.stdout)
    assert [(row[0], row[1]) for row in found] == [
        (str(count), scheme) for count in (24, 384, 6144) for scheme in ("native", "ring")
    ]
    for count, _, p50, p99, algbw, busbw, correct in found:
        assert correct == "yes"
        assert 0 < float(p50) <= float(p99)
        assert float(algbw) == pytest.approx(int(count) / float(p50) / 1e3, abs=2e-3)
        assert float(busbw) == pytest.approx(float(algbw) * 2 / 3, abs=2e-3)  # (p - 1) / p, as nccl-tests
    head = [line for line in ended.stdout.splitlines() if line.startswith("#")]
    assert re.match(r"# reduce_scatter: 3 ranks on 1 host, float32, \S", head[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-e", "1Q"], "-e 1Q: must be a size in bytes"),
        (["-b", "1M", "-e", "1K"], "sizes grow from at least 1"),
        (["-f", "1"], "by a factor of at least 2"),
        (["-b", "9"], "message_bytes: 9 is not a multiple of float32's 4 bytes"),
        (["-a", "rign"], "unknown 'rign'; did you mean 'ring'?"),
        (["allreduc"], "unknown 'allreduc'; did you mean 'allreduce'?"),
    ],
)
def test_a_wrong_argument_is_one_line(capsys, given, message):
    assert main(["bench", *given]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
