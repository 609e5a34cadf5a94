"""One line per size and scheme, as OSU's benchmarks and nccl-tests print them."""

import re

import pytest

from hpcdl.analysis.run.record import Record
from hpcdl.commands.bench import row


def rows(output):
    """Return (bytes, scheme, ops, p50, p99, algbw, busbw, correct) of each line that is not a comment."""
    return [line.split()[:8] for line in output.splitlines() if not line.startswith("#")]


def test_every_size_and_scheme_has_its_line_in_the_order_of_measuring_and_a_run_can_be_resumed(either):
    given = ("-b", "24", "-e", "6K", "-f", "16", "-a", "ring,native", "-n", "3", "-r", "3", "-o", "out")
    ended = either("bench", "reduce_scatter", *given)
    assert ended.returncode == 0, ended.stderr
    found = rows(ended.stdout)
    assert [(row[0], row[1]) for row in found] == [
        (str(count), scheme) for count in (24, 384, 6144) for scheme in ("ring", "native")
    ]
    for count, _, operations, p50, p99, algbw, busbw, correct in found:
        assert correct == "yes"
        assert int(operations) >= 1
        assert 0 < float(p50) <= float(p99)
        assert float(algbw) == pytest.approx(int(count) / float(p50) / 1e3, abs=2e-3)
        assert float(busbw) == pytest.approx(float(algbw) * 2 / 3, abs=2e-3)  # (p - 1) / p, as nccl-tests
    head = [line for line in ended.stdout.splitlines() if line.startswith("#")]
    assert re.match(r"# reduce_scatter: 3 ranks on 1 host, float32, \S", head[0])
    assert "quantiles over 3 repetitions (p99 lies between the two longest)" in head[1]
    for part in sorted((either.folder / "out" / "parts").glob("*.h5"))[4:]:
        part.unlink()
    resumed = either("bench", "reduce_scatter", *given, "--resume")
    assert [row[0] for row in rows(resumed.stdout)] == ["6144", "6144"]


def test_a_row_has_its_marks():
    measured = {"message_bytes": 8, "aggregation": "ring", "correct": False}
    measured |= dict.fromkeys(("time_p50_seconds", "time_p99_seconds"), 1e-6)
    measured |= dict.fromkeys(("algbw_bytes_per_second", "busbw_bytes_per_second"), 1e9)
    assert row(Record(**measured)).endswith("1.000  NO")
    marks = row(Record(**measured, disturbed="other processes", oversubscribed=True)).split("  NO")[1]
    assert marks == "  DISTURBED: other processes  OVERSUBSCRIBED: ranks share cores"
