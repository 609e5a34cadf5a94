"""Compression ratio: bytes of an uncompressed ring that sums once a step / bytes sent, by closed forms."""

import pytest
from contract.cases import case_of, ran

from hpcdl.aggregation.parts.messages import padded
from hpcdl.compression.parts.selection import HEADER

SIMULATED = {"network": "ethernet-10g", "flops": 1e10, "learning_rate": 1e-3}
WHOLE = {"name": "random_k", "density": 1.0}  # all entries: vectors are as long as dense ones
SPARSE = {"name": "top_k", "density": 0.01}
TOP_K = 8 * 131_080 / (4 * padded(HEADER + 8 * 1311))  # a message of 1 % of the entries to each of 4 ranks


@pytest.mark.parametrize(
    ("ranks", "steps", "keys", "ratio"),
    [
        (4, 2, {}, None),
        (4, 2, {"compression": WHOLE}, 1),
        (4, 2, {"compression": WHOLE, "aggregation": "tree"}, 1),  # as many bytes, but not equally many a rank
        (4, 2, {"compression": WHOLE, "aggregation": "butterfly"}, 3 / 4),
        (4, 2, {"compression": SPARSE, "aggregation": "allgather"}, TOP_K),
        (4, 3, {"compression": {**SPARSE, "warmup_steps": 2}, "aggregation": "bruck"}, TOP_K),
        (4, 32, {"compression": WHOLE, "training": {"name": "diloco", "period": 16, "fragments": 2}}, 16),
        (8, 2, {"compression": "fp16", "training": {"name": "d_psgd", "consensus_step": 1.0}}, 2 * 7 / 8),
        *((ranks, 2, {"compression": "fp16", "training": "update_broadcast"}, 4 / ranks) for ranks in (8, 16)),
    ],
)
def test_the_ring_sums_once_a_step_on_as_many_ranks(ranks, steps, keys, ratio):
    fields = ran(case_of("train", **SIMULATED, ranks=ranks, global_batch=ranks, steps=steps, **keys))[0][0]
    expected = ratio and pytest.approx(ratio, rel=1e-3 * ("fp16" in keys.values()))  # headers
    assert fields.get("compression_ratio") == expected
