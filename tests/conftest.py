import os
import random
import subprocess

import pytest

from hpcdl import registry
from hpcdl.trace.recorder import CaseRecord, Evaluation, Recorder, Step
from hpcdl.trace.schema import merge, read, write_part
from hpcdl.training.parts.traits import Strategy

pytest.register_assert_rewrite("contract")


def pytest_addoption(parser):
    parser.addoption("--grids", action="store_true", help="test all combinations of parameters, not a sample")


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Keep a sample of the product of a test's parameters, unless all combinations are tested.

    The sample has each value of each parameter, beside values of the others drawn at random: as many tests as the
    longest parameter has values. Neither the sample nor a test's parameters have values marked with ``grid``.
    """
    yield
    if metafunc.config.getoption("grids"):
        return
    calls = [call for call in metafunc._calls if all(mark.name != "grid" for mark in call.marks)]
    if len(calls) > 1:
        ids = [call._idlist for call in calls]  # one per list of parameters
        axes = [list(dict.fromkeys(axis)) for axis in zip(*ids, strict=True)]
        tests = max(map(len, axes))
        columns = [random.Random(j).sample((tests * axis)[:tests], tests) for j, axis in enumerate(axes)]
        sample = {*zip(*columns, strict=True)}
        calls = [call for call, place in zip(calls, ids, strict=True) if tuple(place) in sample]
    metafunc._calls[:] = calls or metafunc._calls


def pytest_collection_modifyitems(config, items):
    """Leave out the tests marked with ``grid``, unless all combinations are tested."""
    if not config.getoption("grids"):
        items[:] = [item for item in items if not item.get_closest_marker("grid")]


TRAINING = {
    "suite": "s",
    "case": "c",
    "kind": "train",
    "model": "lenet5",
    "dataset": "digits",
    "backend": "numpy",
    "dtype": "float32",
    "training": "synchronous",
    "aggregation": "ring",
    "compression": "none",
    "optimizer": "sgd",
    "nodes": 1,
    "threads_per_rank": 1,
    "scaling": "strong",
    "global_batch": 64,
    "seed": 1,
}


def declared(training):
    """Return the fields of a record that the strategy declares; one that is not ours keeps no common step."""
    from contract.records import choice  # late: first its asserts are rewritten

    named = choice("training", training)
    if named.name not in registry.names("training"):
        return {"lockstep": False}
    traits = registry.traits("training", named.name, Strategy)
    in_flight = traits.gradients_in_flight(named.in_full)
    return {"lockstep": traits.lockstep, "served": traits.served, "gradients_in_flight": in_flight}


class Hand:
    """A run made by hand; times in ms, one list per rank, one entry per step.

    Ranks do not share a clock unless ``common_clock``. ``updates``: by rank, rows of
    :class:`hpcdl.trace.recorder.Update`. ``memory``: bytes, one per rank. ``dropped``: events and updates, of each.
    ``settings``: a dictionary. ``events``: by rank, rows of :data:`hpcdl.trace.recorder.Event`. ``counters``:
    columns of the table of ranks, one dictionary per rank. ``hand.launches`` is the number of equal launches of
    each case that names none.
    """

    made = 0

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.parts = []
        self.launches = 1
        Hand.made += 1
        self.begin = Hand.made  # ns: no two runs take place at the same time

    def case(self, times, **fields):
        if self.launches == 1 or "launch" in fields:
            return self._case(times, **fields)
        for launch in range(self.launches):
            self._case(times, **fields, launch=launch)
        return self

    def _case(
        self,
        times,
        evaluations=(),
        compute=None,
        waiting=None,
        images=16,
        common_clock=False,
        updates=None,
        memory=None,
        dropped=(0, 0),
        events=None,
        counters=None,
        **fields,
    ):
        packed = []
        for rank, durations in enumerate(times):
            recorder = Recorder()
            recorder.updates += (updates or {}).get(rank, [])
            recorder.memory_bytes = memory[rank] if memory else 0
            recorder.dropped, recorder.dropped_updates = dropped
            recorder.events += events[rank] if events else []
            clock = 10**9 * (1 if common_clock else rank + 1) + (0 if events else self.begin)
            for step, ms in enumerate(durations):
                end = clock + round(ms * 1e6)
                worked = 0 if compute is None else round(compute[rank] * 1e6)
                row = Step(step, 0, clock, end, 1.0 + rank, 1, images, worked, 3, 100 + rank)
                waited = 0 if waiting is None else round(waiting[rank] * 1e6)
                recorder.steps.append(row._replace(input_ns=waited))
                clock = end
            if rank == 0:
                recorder.evaluations += [Evaluation(*one) for one in evaluations]
            packed.append(recorder.pack() | (counters[rank] if counters else {}))
        from contract.records import with_settings

        if not isinstance(fields.get("settings"), str):
            fields = with_settings({"ranks": len(times), **fields})
        part = self.folder / f"part{len(self.parts):04d}.h5"
        write_part(part, CaseRecord({"ranks": len(times), **fields}, packed))
        self.parts.append(part)
        return self

    def train(self, times, **fields):
        described = {**TRAINING, **fields}
        independent = described["aggregation"] == "none"
        return self.case(times, **{"independent": independent, **declared(described["training"]), **described})

    def read(self, environment=None, suite_text="", **options):
        merge(self.parts, self.folder / "run.h5", environment or {}, suite_text, **options)
        return read(self.folder)


def ended(command, folder, limit=300, stdin=None, /, **variables):
    """Run a command in a folder, with further variables of the environment; return the process, with its texts."""
    environment, words = {**os.environ, **variables}, [*map(str, command)]
    streams = {"stdin": stdin, "capture_output": True, "text": True}
    return subprocess.run(words, cwd=folder, env=environment, timeout=limit, check=False, **streams)


@pytest.fixture
def hand(tmp_path):
    return Hand(tmp_path)


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """refused(*words): the line by which a command refuses them; no rank starts, and nothing is printed else."""
    from hpcdl.cli import main  # late: tests of ranks load no command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcdl.launch.mpirun.subprocess", None)

    def refuse(*words, lines=1):
        try:
            code = main([*map(str, words)])
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", lines), words
        assert not lines or err.startswith("hpcdl")
        return err

    return refuse
