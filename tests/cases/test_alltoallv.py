"""Cases of an alltoallv: counts of laws and files, what a record has of them, and checks of what arrives."""

import numpy as np
import pytest
from cases.test_device_vectors import measured
from contract.cases import case_of, ran

from hpcdl import suite
from hpcdl.aggregation.parts.traits import ALLTOALLV, schemes
from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.scaling import records
from hpcdl.cases.keys.counts import file, uniform, zipf
from hpcdl.cases.parts.measuring import BlockContents


def counted(path, scheme="direct", **keys):
    """Return a case with the counts of a file, each of two elements."""
    law = {"name": "file", "path": str(path), "scale": 2}
    return case_of("collective", collective=ALLTOALLV, aggregation=scheme, counts=law, message_bytes=None, **keys)


def test_laws_share_all_elements():
    for ranks, elements in ((1, 5), (3, 0), (4, 1003), (49, 49), (7, 10**9)):
        for counts in (uniform(ranks, elements), zipf(ranks, elements, exponent=1.5, seed=3)):
            assert (counts.sum(axis=1) == [elements] * ranks).all()
            assert (counts == counts[0]).all()
    assert uniform(4, 10).tolist() == [[3, 3, 2, 2]] * 4
    assert sorted(zipf(4, 2500)[0]) == [300, 400, 600, 1200]  # 1/4, 1/3, 1/2 and 1 of 25/12
    assert (zipf(4, 2500, exponent=0.0) == uniform(4, 2500)).all()
    assert len({tuple(zipf(5, 1000, seed=seed)[0]) for seed in range(9)}) > 4


def test_a_matrix_in_a_file(tmp_path):
    table = tmp_path / "counts.csv"
    for text in ("0,3\n4,1\n", "# sent; to\n0;3\n\n4;1\n", "0\t3\n4\t1", " 0, 3.0\n4e0, 1\n"):
        table.write_text(text)
        assert file(2, None, path=str(table)).tolist() == [[0, 3], [4, 1]]
    for dtype in ("uint8", "int32", "float32"):
        np.save(tmp_path / "counts.npy", np.array([[0, 3], [4, 1]], dtype))
        assert file(2, None, path=str(tmp_path / "counts.npy"), scale=7).tolist() == [[0, 21], [28, 7]]


BAD = {
    "0,1\n2\n": "must be square, but its lines have different numbers of counts",
    "0,1,2\n3,4,5\n": "must have 2 x 2 numbers, as many as ranks, not 2 x 3 float64",
    "0\n": "must have 2 x 2 numbers, as many as ranks, not 1 x 1",
    "": "must have 2 x 2 numbers, as many as ranks, not 0",
    "0,1\n2,-3\n": "entry (1, 1) must be a whole number from 0 to 1073741823, not -3",
    "0,1.5\n2,3\n": "entry (0, 1) must be a whole number from 0 to 1073741823, not 1.5",
    "0,nan\n2,3\n": "entry (0, 1) must be a whole number from 0 to 1073741823, not nan",
    "0,1\n1e300,3\n": "entry (1, 0) must be a whole number from 0 to 1073741823, not 1e+300",
    "0,1\n2,x\n": "line 2: could not convert string to float: 'x'",
    "\xff": "cannot be read: ",
}


@pytest.mark.parametrize("name", ["counts.csv", "counts.npy", "none.npy"])
def test_a_file_that_is_no_matrix_of_the_ranks_is_refused_in_one_line(tmp_path, name):
    for text, reason in BAD.items():
        (tmp_path / name.replace("none", "another")).write_bytes(text.encode("latin-1"))
        with pytest.raises(suite.UsageError) as caught:
            counted(tmp_path / name)
        wanted = {"counts.csv": reason, "none.npy": "missing"}.get(name, "cannot be read: ")
        assert str(caught.value).startswith(f"s.toml: [[case]] 1: counts: {tmp_path / name}: {wanted}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", schemes(ALLTOALLV))
def test_every_scheme_is_right_and_the_record_has_the_volumes_of_the_matrix(scheme, tmp_path):
    uneven = np.array([[4, 0, 17], [34, 2, 0], [1, 17, 0]])
    for matrix, dtype in ((uneven, "float64"), (0 * uneven, "float32"), (1 + 40 * uneven, "float32")):
        np.save(tmp_path / "counts.npy", matrix)
        case = counted(tmp_path / "counts.npy", scheme, repetitions=3, dtype=dtype, ranks=3)
        told, recorders = ran(case)
        assert all(each["correct"] for each in told)
        assert {len(recorder.steps) for recorder in recorders} == {8}
        size, received, record = 2 * np.dtype(dtype).itemsize, matrix.sum(axis=0), case.fields()
        assert record["busiest_bytes"] == size * (matrix.sum(axis=0) - matrix.diagonal())[0]
        assert record["message_bytes"] == size * matrix.sum(axis=1).max()
        assert record["imbalance"] == (pytest.approx(received.max() / received.mean()) if matrix.any() else None)


def test_vectors_on_a_device_arrive_and_are_checked_there(monkeypatch):
    for scheme in schemes(ALLTOALLV):
        told = measured(monkeypatch, collective=ALLTOALLV, aggregation=scheme, counts="zipf")
        assert all(each["correct"] and not each["copied"] for each in told)


def test_a_block_in_the_place_of_another_is_noticed():
    """Also of equal length, a multiple of the period of the content."""
    vectors = [BlockContents(np.full((3, 3), 34), rank, "float32") for rank in range(3)]
    mine, others = ([np.split(each.before, 3)[to] for each in vectors] for to in (1, 2))
    good = np.concatenate(mine)
    assert vectors[1].right(good)
    for wrong in ([mine[1], mine[0], mine[2]], others, [mine[0], mine[1], others[2]]):
        assert not vectors[1].right(np.concatenate(wrong))
    assert not any(vectors[1].right(good + (np.arange(len(good)) == place)) for place in range(len(good)))


def test_busbw_is_of_the_busiest_rank(hand):
    described = {"kind": "collective", "collective": ALLTOALLV, "message_bytes": 100, "busiest_bytes": 140}
    hand.case([[2.0]] * 3, aggregation="direct", warmup_steps=0, **described)
    (record,) = records(launches(hand.read()))
    assert (record.algbw_bytes_per_second, record.busbw_bytes_per_second) == pytest.approx((50e3, 70e3))
