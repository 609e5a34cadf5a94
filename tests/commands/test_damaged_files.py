"""Damaged files of every kind end a command in one line: no traceback, whatever the damage.

``pytest --grids`` makes 3,500 damaged files, and 500 runs with a flipped bit and a checksum that fits.
"""

import json
import lzma
import math
import random
import shutil

import pytest
from conftest import Hand

from hpcdl.analysis.over_time import archive as series_file
from hpcdl.analysis.over_time.archive import keep_series
from hpcdl.cli import main
from hpcdl.trace.files import SIZE, verified_checksum, write_checksum
from hpcdl.trace.recorder import SCHEMA
from hpcdl.trace.schema import packed

TEXTS = {
    "network": """
[network]
ranks_per_host = 1
gamma = 1e-10
[link]
alpha = 1e-5
beta = 1e-9
""",
    "accept": '[[accept]]\ncase = "*"\nreason = "known"\nexpires = 2027-01-31\n',
}
KINDS = ["run.h5", "run.h5 resealed", "part", "records", "records changed", "series", "series resealed", *TEXTS]


def damaged(content, chance):
    """Return the content with a byte changed, a piece lost, moved or doubled, or its end cut off."""
    content = bytearray(content)
    begin = chance.randrange(len(content))
    end = min(len(content), begin + chance.choice([1, 2, 8, 100]))
    match chance.randrange(4):
        case 0:
            content[begin:end] = chance.randbytes(end - begin)
        case 1:
            del content[begin:end]
        case 2:
            content[begin:begin] = content[begin:end]
        case 3:
            del content[begin:]
    return bytes(content)


def changed_json(text, chance):
    """Return JSON with one value replaced by one of another kind, or left out."""
    whole = [json.loads(text)]
    place = whole
    key = 0
    while isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.8:
        place = place[key]
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
    new = chance.choice([None, [], {}, "x", -1, 1e400, math.nan, [[]], {"x": {}}])
    place[key] = new
    return json.dumps(whole[0])


FILES = {"run.h5": "run/run.h5", "series": "run/run.series.json", "part": "part.h5", "records": "records.json.xz"}


def harm(kind, folder, chance):
    name = kind.split()[0]
    file = folder / FILES.get(name, f"{name}.toml")
    if kind == "series resealed":
        body = changed_json(file.read_text().partition("\n")[2], chance)
        head = series_file._head(verified_checksum(file.with_name("run.h5")), body, SCHEMA)
        file.write_text(f"{head}\n{body}", encoding="ascii")
    elif kind == "records changed":
        file.write_bytes(lzma.compress(changed_json(lzma.decompress(file.read_bytes()), chance).encode()))
    elif kind == "run.h5 resealed":
        content = bytearray(file.read_bytes())
        content[chance.randrange(SIZE, len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        write_checksum(file)
    else:
        file.write_bytes(damaged(file.read_bytes(), chance))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that makes good files in a new folder, by kind."""
    hand = Hand(tmp_path_factory.mktemp("whole"))
    hand.train([[9.0] * 6] * 2)
    hand.case(
        [[1.0] * 8] * 2,
        case="sums", kind="collective", collective="allreduce", aggregation="ring", message_bytes=64,
    )  # fmt: skip
    run = hand.read({"date": "2026-11-01T03:00:00+00:00"}, "[suite]\nname = 's'\n")
    keep_series(run)
    records = packed(run)

    def make():
        folder = tmp_path_factory.mktemp("files")
        for run in ("run", "other"):
            (folder / run).mkdir()
            for name in ("run.h5", "run.series.json"):
                shutil.copy(hand.folder / name, folder / run / name)
        for name, text in TEXTS.items():
            (folder / f"{name}.toml").write_text(text)
        shutil.copy(hand.parts[0], folder / "part.h5")
        (folder / "records.json.xz").write_bytes(records)
        return folder

    return make


PREDICT = "predict {}/run --network gemini --ranks 4"
READ_A_RUN = ["compare {}/run --with {}/other", "history {}", "report {}/run", PREDICT]
COMMANDS = {
    "run.h5": READ_A_RUN,
    "series": READ_A_RUN,
    "part": ["report {}/part.h5"],
    "records": ["report {}/records.json.xz --json", "compare {}/records.json.xz --with {}/run"],
    "network": ["predict {}/run --network {}/network.toml --ranks 2,64"],
    "accept": ["history {} --accept {}/accept.toml"],
}
"""Commands that read a file, by its kind."""


@pytest.mark.parametrize(
    "number", [*range(2), *(pytest.param(one, marks=pytest.mark.grid) for one in range(2, 500))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_ends_in_a_result_or_one_line(kind, number, whole, capfd, monkeypatch):
    folder = whole()
    monkeypatch.chdir(folder)
    harm(kind, folder, random.Random(f"{kind} {number}"))
    for command in COMMANDS[kind.split()[0]]:
        try:
            code = main(command.replace("{}", str(folder)).split())
        except SystemExit as ended:
            code = ended.code
        said = capfd.readouterr().err
        assert code in {0, 1, 2, 3}, command
        assert code != 2 or (said.count("\n") == 1 and "/" in said), said
