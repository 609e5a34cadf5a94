"""Sizes that never end, or that exceed any machine, are refused before anything runs."""

import pytest

from hpcdl import suite
from hpcdl import suite as memory
from hpcdl.aggregation.parts import cost
from hpcdl.cli import main
from hpcdl.suite import PROCESS_BYTES


def test_every_message_count_of_a_docstring_can_be_evaluated():
    from hpcdl.aggregation.parts.collectives import COLLECTIVES, offered, schemes

    for collective in COLLECTIVES:
        for name in schemes(collective):
            assert (cost.volume("Messages", offered(collective, name), 1024, 1 << 20) or 0) >= 0


def test_lists_with_too_many_cases_are_refused(written, refused):
    """They are counted before they are made: these lists have 10^30 cases."""
    many = [*range(1000)]
    keys = ("message_bytes", "repetitions", "warmup", "ranks_per_host", "threads", "ranks", "trace", "dtype")
    lists = dict.fromkeys(keys, many) | {"start": many, "placement": many}
    assert refused(written("collective", **lists)) == (
        f"[[case]] 1: its lists make {10**30} cases; a suite has at most 10000"
    )


@pytest.mark.parametrize("arguments", [["--dry-run"], []])
def test_ranks_that_exceed_the_memory_of_the_node_are_refused(tmp_path, written, monkeypatch, capsys, arguments):
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 100 * PROCESS_BYTES)
    file = tmp_path / "s.toml"
    file.write_text(written("pairwise", pattern="all_pairs", ranks=101))
    assert main(["run", str(file), "-o", str(tmp_path / "run"), *arguments]) == 2
    assert "101 processes: needs at least 101 ranks x 0.06 GB of memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


TWO = """
[suite]
name = "s"
[[case]]
kind = "collective"
aggregation = ["ring", "tree"]
message_bytes = 64
ranks = 2
[[case]]
kind = "pairwise"
message_bytes = 64
"""


def test_a_value_that_only_unselected_cases_refuse_is_accepted(refused):
    """Only a tree has an arity, and 6 bytes are not float32; the selected cases can run."""
    overrides = ["case.aggregation.arity=3"]
    assert "unknown setting 'arity'" in refused(TWO, overrides)
    (tree,) = suite.parse(TWO, "s.toml", overrides, ("*tree*",)).cases
    assert tree.spec.aggregation.written == {"name": "tree", "arity": 3}
    (exchange,) = suite.parse(TWO, "s.toml", ["case.message_bytes=6"], ("pairwise-*",)).cases
    assert exchange.spec.message_bytes == 6
    for glob in ("*ring*", "collective-*"):
        with pytest.raises(suite.UsageError, match="unknown setting 'arity'"):
            suite.parse(TWO, "s.toml", overrides, (glob,))
