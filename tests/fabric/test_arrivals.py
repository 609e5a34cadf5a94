"""Sleep ends when a message comes, and at the latest when it should."""

import os
import select
import socket
import threading
import time

import pytest

from hpcdl.fabric.arrivals import Arrivals, event_queues

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs Linux's event queues")

LONG = 60
"""Seconds; a test that slept for so long would be noticed."""


@pytest.fixture
def line():
    """Two ends, and an event queue that fills when something comes to the second."""
    here, there = socket.socketpair()
    with here, there, select.epoll() as queue:
        queue.register(there, select.EPOLLIN)
        yield here, there, queue


def test_a_process_finds_its_queues(line):
    queue = line[-1].fileno()
    assert queue in event_queues()
    line[-1].close()
    assert queue not in event_queues()


def test_a_message_ends_it_and_stays(line):
    here, there, _ = line
    arrivals = Arrivals(event_queues())
    sender = threading.Timer(0.05, here.send, [b"message"])
    sender.start()
    began = time.perf_counter()
    arrivals.sleep(LONG)
    assert time.perf_counter() - began < LONG
    sender.join()
    arrivals.sleep(LONG)  # nobody has taken it yet
    assert there.recv(100) == b"message"


@pytest.mark.parametrize("queues", [0, 1])
def test_without_one_it_lasts_as_long_as_was_asked_for(queues, line):
    arrivals = Arrivals([line[-1].fileno()][:queues])
    began = time.perf_counter()
    arrivals.sleep(0.02)
    assert time.perf_counter() - began >= 0.02


def test_a_queue_that_is_closed_is_forgotten(line):
    queue = line[-1].fileno()
    arrivals = Arrivals([queue])
    line[-1].close()
    arrivals.sleep(0.001)
    arrivals.sleep(0.001)
    taken = os.open("/dev/null", os.O_RDONLY)  # always ready, with the number that the queue had
    try:
        assert taken == queue
        began = time.perf_counter()
        arrivals.sleep(0.02)
        assert time.perf_counter() - began >= 0.02
    finally:
        os.close(taken)
