"""Messages in pieces between two ranks that are flows of one process, choice of a transport, and calls of NCCL."""

import itertools
import random
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from contract.device import OnDevice
from fabric.staging import SlowCopies

from hpcdl.fabric.comm import Status
from hpcdl.fabric.device import transport
from hpcdl.fabric.device.staged_copy import NUMBERS, both, receive, send
from hpcdl.fabric.device.transport import Nccl


class Line:
    """A wire between flows of one process: sends are taken when their receive is there, after a while."""

    def __init__(self, rank, boxes, patience, log=None):
        self.rank = rank
        self._boxes = boxes
        self._patience = patience
        self._log = [] if log is None else log
        self._numbers = itertools.count()
        self._begun = 0

    def number(self, dest):
        return next(self._numbers) % NUMBERS

    def is_next(self, dest, number):
        return number == self._begun

    def send(self, words, dest, tag):
        self._begun += 1
        return self._post(("first", self.rank, dest, tag), words)

    def send_rest(self, words, dest, number):
        return self._post(("rest", self.rank, dest, number), words)

    def receive(self, words, source, tag):
        wait, came = self._take(("first", source, self.rank, tag), words)
        return wait, lambda: Status(source, tag, came[0])

    def receive_rest(self, words, source, number):
        return self._take(("rest", source, self.rank, number), words)[0]

    def _post(self, box, words):
        letter = {"words": words, "taken": False}
        self._boxes.setdefault(box, []).append(letter)
        self._log.append("send begins")
        return lambda: letter["taken"]

    def _take(self, box, words):
        came, place = [], self._boxes.setdefault((*box, "places"), itertools.count())
        mine, left = next(place), self._patience()

        def wait():
            nonlocal left
            left -= 1
            letters = self._boxes.get(box, [])
            if not came and left < 0 and len(letters) > mine:
                letter = letters[mine]
                words[: len(letter["words"])] = letter["words"][: len(words)]
                letter["taken"] = True
                came.append(len(letter["words"]))
                self._log.append("send ends")
            return bool(came)

        return wait, came


def drive(*flows, seed=0):
    """Run flows to their ends, asking whichever chance chooses; what they returned."""
    chance = random.Random(seed)
    waits, answers = {}, {}

    def advance(i):
        try:
            waits[i] = next(flows[i])
        except StopIteration as stop:
            waits.pop(i, None)
            answers[i] = stop.value

    for i in range(len(flows)):
        advance(i)
    for _ in range(1_000_000):
        if not waits:
            return [answers[i] for i in range(len(flows))]
        i = chance.choice(sorted(waits))
        if waits[i]():
            advance(i)
    raise AssertionError(f"flows {sorted(waits)} never end")


def pair(chunk, seed=0, log=None):
    chance, boxes = random.Random(seed), {}

    def patience():
        return chance.randrange(6)

    return [(Line(rank, boxes, patience, log), SlowCopies(chunk, patience, log)) for rank in range(2)]


CHUNK = 64

LENGTHS = [0, 1, 7, 8, 9, 15, 16, 17, 24, 40, 1003]
"""Doubles; 8 of them fill a slot."""


def test_what_is_sent_arrives():
    for seed in range(5):
        for length in LENGTHS:
            (here, out), (there, into) = pair(CHUNK, seed)
            sent, got = OnDevice(np.arange(float(length))), OnDevice(np.full(length + 11, -1.0))
            _, status = drive(send(here, out, sent, 1, 5), receive(there, into, got, 0, 5), seed=seed)
            assert status == Status(0, 5, length)
            assert (got.held[:length] == np.arange(length)).all()
            assert (got.held[length:] == -1).all()
            assert out.borrowed == into.borrowed == 0


def test_ranks_that_exchange():
    """Of different lengths, each with both of its flows under way."""
    for seed in range(5):
        ends = pair(CHUNK, seed)
        outgoing = [OnDevice(np.arange(1003.0)), OnDevice(np.arange(500.0) * 2)]
        incoming = [OnDevice(np.zeros(500)), OnDevice(np.zeros(1003))]
        flows = [
            both(send(wire, copies, outgoing[me], 1 - me, 0), receive(wire, copies, incoming[me], 1 - me, 0))
            for me, (wire, copies) in enumerate(ends)
        ]
        answers = drive(*flows, seed=seed)
        assert [status.count for _, status in answers] == [500, 1003]
        assert (incoming[0].held == outgoing[1].held).all()
        assert (incoming[1].held == outgoing[0].held).all()


def test_messages_under_one_tag_do_not_mix():
    """Two at once: pieces of one never get into the other."""
    for seed in range(5):
        (here, out), (there, into) = pair(CHUNK, seed)
        sent = [OnDevice(np.full(n, float(n))) for n in (100, 77, 3)]
        got = [OnDevice(np.zeros(100)) for _ in sent]
        flows = [send(here, out, one, 1, 0) for one in sent] + [receive(there, into, one, 0, 0) for one in got]
        *_, first, second, third = drive(*flows, seed=seed)
        assert [first.count, second.count, third.count] == [100, 77, 3]
        for one, status in zip(got, (first, second, third), strict=True):
            assert (one.held[: status.count] == status.count).all()


def test_a_piece_is_copied_while_its_neighbour_travels():
    log = []
    wire = Line(0, {}, lambda: 0, log)
    copies = SlowCopies(CHUNK, lambda: 1, log)
    flow = send(wire, copies, OnDevice(np.zeros(24)), 1, 0)
    for wait in flow:
        while not wait() and log.count("send begins") < 2:
            pass
        if log.count("send begins") == 2:
            break
    first, second = (i for i, event in enumerate(log) if event == "send begins")
    assert "out begins" in log[first:second]
    assert "send ends" not in log


def test_no_slot_is_written_while_it_travels():
    """The third piece waits until the first has gone."""
    log, boxes = [], {}
    wire, copies = Line(0, boxes, lambda: 0, log), SlowCopies(CHUNK, lambda: 0, log)
    flow = send(wire, copies, OnDevice(np.arange(24.0)), 1, 0)
    while next(flow)():
        pass
    assert log.count("out begins") == 2
    letters = [letter for box in boxes.values() if isinstance(box, list) for letter in box]
    assert [letter["words"][-8:].view(np.float64).item() for letter in letters] == [7, 15]


def test_too_long_a_message():
    (here, out), (there, into) = pair(CHUNK)
    flows = send(here, out, OnDevice(np.zeros(4)), 1, 0), receive(there, into, OnDevice(np.zeros(2)), 0, 0)
    with pytest.raises(ValueError, match=r"^a message of 32 bytes from rank 0 into 16$"):
        drive(*flows)


def test_a_setting_wins():
    with pytest.raises(ValueError, match=r"^HPCDL_TRANSPORT='fast' is neither device nor staged nor ipc$"):
        transport.choose({"HPCDL_TRANSPORT": "fast"})
    assert transport.choose({"HPCDL_TRANSPORT": "device"}).kind == "device"


@pytest.mark.parametrize(
    ("says", "arrives", "kind"), [(True, True, "device"), (True, False, "staged"), (False, True, "staged")]
)
def test_what_a_library_says_is_tried(says, arrives, kind, monkeypatch):
    monkeypatch.setattr(transport, "cuda_aware", lambda: says)
    monkeypatch.setattr(transport, "arrives_at_oneself", lambda _environment: arrives)
    monkeypatch.setattr(transport, "PinnedCopies", lambda: SlowCopies(CHUNK))
    assert transport.choose({}).kind == kind


class NcclGroup:
    asked = ()

    def __init__(self, size, name, rank):
        pass

    def allReduce(self, *arguments):
        NcclGroup.asked = arguments


def vector(address):
    return SimpleNamespace(data=SimpleNamespace(ptr=address), size=5, dtype=np.dtype("float32"))


@pytest.mark.parametrize(("operand", "read"), [(None, 20), (vector(10), 10)])
def test_nccl_reads_the_operand_and_writes_the_result(monkeypatch, operand, read):
    kinds = {f"NCCL_{name}": name for name in ("FLOAT32", "FLOAT64", "INT32", "INT64", "SUM")}
    library = SimpleNamespace(available=True, get_unique_id=lambda: 7, NcclCommunicator=NcclGroup, **kinds)
    stream = SimpleNamespace(ptr=99, record=lambda: SimpleNamespace(done=True))
    cuda = ModuleType("cupy.cuda")
    cuda.nccl = library
    cuda.runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    cuda.Device = lambda: SimpleNamespace(pci_bus_id="0")
    cuda.get_current_stream = lambda: stream
    cupy = ModuleType("cupy")
    cupy.cuda = cuda
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    done = Nccl(0, 1, lambda mine: [mine], lambda name: name).allreduce(operand, vector(20))
    assert NcclGroup.asked == (read, 20, 5, "FLOAT32", "SUM", 99)
    assert done()
