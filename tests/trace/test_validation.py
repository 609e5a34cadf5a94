"""Damaged traces are read correctly, or refused in one line that names the file."""

import json
import random
import shutil

import h5py
import numpy as np
import pytest
from contract.traces import changed

from hpcdl.analysis.run.points import AmbiguousCaseError
from hpcdl.launch.environment import describe_job, describe_rank
from hpcdl.report.run.render import render
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import merge, read, read_part

SUITE = "[suite]\nname = 's'\nquestion = 'Which?'\n"

ATTRIBUTES = [
    *(0, -1, 2**31, 2**62, -(2**63), 0.0, float("nan"), float("inf"), 1e308, 1e-320, True, "", "ring", "a\nb"),
    *("\x1b[31m", "weak", "own", "collective", "pairwise", b"\xff\xfe", h5py.Empty("u1"), np.uint64(2**64 - 1)),
    *(np.array([1, 2]), np.array([b"a"]), np.complex64(1j)),
]
IN_ENVIRONMENT = [
    *(None, 0, -1, 10**400, 1.5, "", "x", "unknown", [], {}, [1], {"a": 1}, True, ["a"], [[]], "0-9999999999"),
    *("\x1b", {"x": {}}),
]
INSTEAD = [1, "x", np.zeros(3), np.zeros((2, 2)), np.array([b"a"]), h5py.Empty("f8")]
SUITES = ["[", "suite = 3", "[suite]\nquestion = 3", "x = " + "[" * 5000, "\x1b[2J", "", "[suite]\nquestion='```'"]


@pytest.fixture
def whole(hand):
    """Write a file with two trainings and a collective, and the description of a real machine."""
    evaluations = [(4, 1.0, 0.5, 0.3, 0.9, 64)]
    hand.train([[9.0] * 8], evaluations=evaluations)
    hand.train([[5.0] * 8] * 2, updates={0: [(7, 1, 5, 2, 0.1)]}, evaluations=evaluations)
    hand.case([[1.0] * 8] * 2, kind="collective", collective="allreduce", aggregation="ring", message_bytes=64)
    hand.read(
        {
            **describe_job({"library": "MPICH", "version": "5", "nodes": 1}),
            "ranks": [describe_rank(), describe_rank()],
        },
        SUITE,
    )
    return hand.folder / "run.h5"


def places(file, kind=h5py.Group | h5py.Dataset):
    found = []
    file.visititems(lambda name, thing: found.append(name) if isinstance(thing, kind) else None)
    return found


def paths(value, path=()):
    """Yield all places in a JSON document."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from paths(one, (*path, key))


def change_field(file, dice):
    case = file["cases"][dice.choice(sorted(file["cases"]))]
    name = dice.choice([*case.attrs])
    if dice.random() < 0.1:
        del case.attrs[name]
    else:
        case.attrs[name] = dice.choice(ATTRIBUTES)


def change_head(file, dice):
    file.attrs[dice.choice([*file.attrs])] = dice.choice(ATTRIBUTES)


def change_environment(file, dice):
    environment = json.loads(file["environment"].asstr()[()])
    *way, last = dice.choice([path for path in paths(environment) if path])
    holder = environment
    for key in way:
        holder = holder[key]
    holder[last] = dice.choice(IN_ENVIRONMENT)
    del file["environment"]
    file["environment"] = json.dumps(environment)


def change_suite(file, dice):
    del file["suite"]
    file["suite"] = dice.choice(SUITES)


def delete(file, dice):
    del file[dice.choice(places(file))]


def rename(file, dice):
    place = dice.choice(places(file))
    file.move(place, place + dice.choice(["0", "x", "\n", "\x1b"]))


def replace(file, dice):
    place = dice.choice(places(file))
    del file[place]
    if dice.random() < 0.3:
        file.create_group(place)
    else:
        file[place] = dice.choice(INSTEAD)


def _table(file, dice):
    place = dice.choice([one for one in places(file, h5py.Dataset) if file[one].dtype.names])
    table = file[place][()]
    del file[place]
    return place, table


def change_columns(file, dice):
    place, table = _table(file, dice)
    columns = list(table.dtype.descr)
    number = dice.randrange(len(columns))
    name, kind = columns.pop(number)
    if dice.random() < 0.7:
        columns.insert(number, dice.choice([(name, "<f4"), (name, "S3"), (name, ">i8"), ("foreign", kind)]))
    file[place] = np.zeros(table.shape, columns)


def change_rows(file, dice):
    place, table = _table(file, dice)
    column = dice.choice(table.dtype.names)
    values = [-1, 0, 5, 2**31 - 1, -(2**31)]
    values += {"f": [float("nan"), float("inf"), 1e308], "i": []}[table.dtype[column].kind]
    values += [2**63 - 1, -(2**63)] if table.dtype[column] == np.int64 else []
    for number in range(len(table)):
        if dice.random() < 0.3:
            table[column][number] = dice.choice(values)
    file[place] = table


def change_length(file, dice):
    place, table = _table(file, dice)
    if dice.random() < 0.2:
        file.create_dataset(place, (10**12,), table.dtype, chunks=(1000,))
    else:
        file[place] = dice.choice([table[:-1], np.concatenate([table, table]), table.reshape(1, -1)])


CHANGES = [
    *(change_field, change_field, change_environment, change_environment, change_head, change_suite, delete),
    *(rename, replace, change_columns, change_rows, change_length),
]


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.grid) for block in range(1, 8))])
def test_a_changed_trace_is_read_or_refused_in_one_line(whole, tmp_path, block):
    folder = tmp_path / "changed"
    folder.mkdir()
    outcomes = {"read": 0, "refused": 0}
    for seed in range(60 * block, 60 * (block + 1)):
        dice = random.Random(seed)
        shutil.copy(whole, folder / "run.h5")
        with changed(folder / "run.h5") as file:
            dice.choice(CHANGES)(file, dice)
        try:
            run = read(folder)
            assert len(run.events) == 0
            text = render([run], dice.choice(["md", "summary", "csv", "json"]))
            assert all(one.isprintable() or one == "\n" for one in text), seed
            outcomes["read"] += 1
        except AmbiguousCaseError:
            pass
        except TraceError as error:
            assert str(folder) in str(error), seed
            assert "\n" not in str(error), seed
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 5


def refused(path, *words):
    with pytest.raises(TraceError) as caught:
        len(read(path).events)
    for word in (str(path), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("[]", "not a table of settings"),
        ("{", "damaged trace"),
        ('{"jitter": NaN}', "a number out of range"),
        ('{"flops": 1e999}', "a number out of range"),
        ('{"training": {"name": "a", "b": [9223372036854775808]}}', "a number out of range"),
        ('{"a": ' + "[" * 50 + "]" * 50 + "}", "nested too deeply"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "damaged trace"),
    ],
    ids=lambda text: text[:20],
)
def test_settings_that_no_suite_has_are_refused(whole, settings, reason):
    with changed(whole) as file:
        file["cases/000001"].attrs["settings"] = settings
    refused(whole, reason)


@pytest.mark.parametrize("place", ["suite", "environment", "cases", "cases/000001", "cases/000001/steps"])
def test_no_link_leads_out_of_a_trace(whole, tmp_path, place):
    """Otherwise a private file of the reader could appear in a report."""
    secret = tmp_path / "secret.h5"
    shutil.copy(whole, secret)
    with changed(whole) as file:
        del file[place]
        file[place] = h5py.ExternalLink(str(secret), place)
    refused(whole, f"/{place}: is an external link")
    with pytest.raises(TraceError, match="external link"):
        merge([whole], tmp_path / "merged.h5")
    with changed(whole) as file:
        del file[place]
        file[place] = h5py.SoftLink("/cases/000000")
    refused(whole, f"/{place}: is a soft link")


@pytest.mark.parametrize("place", ["suite", "cases/000001/steps", "cases/000001/labels"])
def test_no_values_lie_in_another_file(whole, tmp_path, place):
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not tell\n" * 1000)
    with changed(whole) as file:
        old = file[place]
        shape, kind = old.shape or (10,), old.dtype if old.dtype.names else "S100"
        del file[place]
        file.create_dataset(place, shape, kind, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    refused(whole, f"/{place}: has its values in another file")
    layout = h5py.VirtualLayout(shape, kind)
    layout[:] = h5py.VirtualSource(str(secret), "x", shape, kind)
    with changed(whole) as file:
        del file[place]
        file.create_virtual_dataset(place, layout)
    refused(whole, f"/{place}: has its values in another file")


def test_a_part_holds_exactly_one_case(hand):
    hand.train([[1.0] * 3])
    part = hand.parts[0]
    assert read_part(part)[0]["kind"] == "train"
    with changed(part) as file:
        file.copy("cases/000000", "cases/000001")
    refused(part, "a part holds one case, but this one holds 2")
    with changed(part) as file:
        del file["cases/000000"], file["cases/000001"]
    refused(part, "a part holds one case, but this one holds 0")


def test_missing_rows_are_not_zeros(whole):
    """HDF5 reads missing data as zeros."""
    with changed(whole) as file:
        kind = file["cases/000001/updates"].dtype
        del file["cases/000001/updates"]
        file.create_dataset("cases/000001/updates", (10**12,), kind, chunks=(1000,))
    refused(whole, "updates", "bytes, but the file has fewer")
