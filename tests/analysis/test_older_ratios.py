"""Compression ratios of records of older versions, of which the tree keeps five cases."""

from pathlib import Path

import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.trace.schema import read


def test_compression_ratios_of_older_records_are_converted():
    """They were to dense messages: p - 1 in a broadcast, two to neighbours, or a ring every few steps."""
    found = launches(read(Path(__file__).with_name("older_ratios.json.xz")))
    assert {one.record.strategy for one in found} == {"synchronous", "update_broadcast", "diloco", "d_psgd"}
    for one in found:
        record, ranks = one.record, one.record.ranks
        times = {"update_broadcast": 2 / ranks, "d_psgd": (ranks - 1) / ranks}.get(record.strategy, record.period)
        expected = times * one.case.fields["compression_ratio"]
        assert record.compression_ratio == pytest.approx(expected, rel=0.02), record.case
