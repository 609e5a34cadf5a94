"""An error in a suite is one line with the file, the key and the nearest valid name."""

import h5py
import numpy as np
import pytest

from hpcdl import suite

CASE = '[[case]]\nkind = "pairwise"\nmessage_bytes = 4\n'

WRONG_FILES = [
    ("name = ", "not TOML: "),
    ("x = " + "[" * 9999, "not TOML: "),
    ('[suite]\nname = "s"\n', "there is no [[case]]"),
    ('[suite]\nname = "s"\n[case]\nkind = "pairwise"', "there is no [[case]]"),
    (CASE, "[suite]: name: a suite needs a name"),
    (f"suite = 1\n{CASE}", "there is no [suite]"),
    (f'[suite]\nname = "../x"\n{CASE}', "[suite]: name: must be a word that can name a folder, not '../x'"),
    (f'[suite]\nname = "s"\nquestion = 1\n{CASE}', "[suite]: question: must be str, not 1"),
    (
        f'[suite]\nname = "s"\npapers = "firecafe"\n{CASE}',
        "[suite]: papers: unknown 'firecafe'; did you mean 'firecaffe'?",
    ),
    (f'[suite]\nname = "s"\nnaem = "s"\n{CASE}', "[suite]: naem: unknown key; did you mean 'name'?"),
    (f'[suite]\nname = "s"\n{CASE}{CASE}', "the case 'pairwise-exchange-fabric-4B' is there twice"),
]


def test_a_file_that_is_not_a_suite_is_refused(refused):
    for text, message in WRONG_FILES:
        assert refused(text).startswith(message)


def test_a_wrong_override_is_refused(written, refused):
    for override, message in [
        ("steps=3", "write case.KEY=VALUE"),
        ("case.steps", "write case.KEY=VALUE"),
        ("case.step=3", "no case has the key 'step'; did you mean 'steps'?"),
        ("case.ranks.x=3", "ranks: 2 is not a table"),
        ("case.steps=many", "[[case]] 1: steps: must be int, not 'many'"),
        ("case.optimizer.arity=3", "optimizer: unknown setting 'arity'"),
        ("case.kind=pairwise", "[[case]] 1: model: unknown key"),
        ("suite.name=", "name: must be a word"),
        ("suite.nam=x", "nam: unknown key; did you mean 'name'?"),
        (f"case.steps={'9' * 9999}", "steps: must be int"),
    ]:
        assert message in refused(written(), [override])


def test_control_characters_in_a_case_name_are_refused(tmp_path, written, refused):
    path = tmp_path / "a\x1b[2J.h5"
    with h5py.File(path, "w") as file:
        for split in ("train", "test"):
            file[f"{split}/images"] = np.zeros((8, 12, 10, 3), np.uint8)
            file[f"{split}/labels"] = np.arange(8)
    message = refused(written(dataset={"name": "hdf5", "path": str(path)}, global_batch=4))
    assert message.startswith("the case 'train-lenet5-hdf5(")
    assert "\x1b" not in message
    assert message.endswith("has characters in its name that cannot be shown")


def test_an_unreadable_suite_is_refused(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'[suite]\nname = "\xe9"')
    wrong = {"none.toml": "no such suite file", "latin.toml": "not UTF-8", ".": "cannot be read: Is a"}
    for name, message in wrong.items():
        with pytest.raises(suite.UsageError) as caught:
            suite.load(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path))
        assert message in str(caught.value)


PLUG_INS = """
import numpy as np
NUMBER = 3
def plain(comm, buffer): ...
async def scheme(comm, buffer, *, power: int = 2): ...
def dataset(): return 5
def optimizer(): return 5
def empty(shape, classes): return []
def numbers(shape, classes): return [5]
class Halves:
    look_ahead = 0.0
    def __init__(self, *, by: float = 2.0): self.by, self.state, self.steps = by, {}, 0
    def update(self, parameters, gradients, learning_rate): ...
class Bare:
    def update(self, parameters, gradients, learning_rate): ...
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_schemes.py").write_text(PLUG_INS)
    (tmp_path / "my_typo.py").write_text("def f(:\n")
    (tmp_path / "my_crash.py").write_text("1 / 0\n")


def test_an_unusable_object_of_the_user_is_refused(plugins, written, refused):
    for key, value, message in [
        ("aggregation", "nosuchmodule:thing", "No module named 'nosuchmodule'"),
        ("aggregation", "my_schemes:nothing", "has no attribute 'nothing'"),
        ("aggregation", ":scheme", "Empty module name"),
        ("aggregation", "my_typo:f", "SyntaxError: invalid syntax (my_typo.py, line 1)"),
        ("aggregation", "my_crash:f", "ZeroDivisionError: division by zero"),
        ("aggregation", "my_schemes:NUMBER", "is a int, which cannot be called"),
        ("aggregation", "my_schemes:plain", "is not an async function"),
        ("aggregation", {"name": "my_schemes:scheme", "pwer": 3}, "did you mean 'power'?"),
        ("aggregation", {"name": "my_schemes:scheme", "power": "3"}, "setting 'power' must be int, not '3'"),
        ("dataset", "my_schemes:dataset", "'int' object has no attribute 'test'"),
        ("optimizer", "my_schemes:optimizer", "has no attribute 'update'"),
        ("optimizer", "my_schemes:Bare", "'Bare' object has no attribute 'state'"),
        ("model", "my_schemes:dataset", "takes 0 positional arguments"),
        ("model", "my_schemes:empty", "ends in (8, 8, 1), but digits has 10 classes"),
        ("model", "my_schemes:numbers", "'int' object has no attribute 'declare'"),
    ]:
        found = refused(written(**{key: value}))
        assert found.startswith(f"[[case]] 1: {key}: ")
        assert message in found


def test_an_object_of_the_user_is_accepted(plugins, parsed):
    (case,) = parsed(
        aggregation={"name": "my_schemes:scheme", "power": 3}, optimizer={"name": "my_schemes:Halves", "by": 3.0}
    )
    assert case.name == "train-lenet5-digits-synchronous-my_schemes:scheme(power=3)-p2-b64-3st"
