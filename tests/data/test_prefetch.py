"""Prefetch: equal items, made ahead by a thread that ends when closed."""

import threading
import time

import pytest

from hpcdl.training.parts.inputs import Prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    assert not threads()
    yield
    assert not threads()


@pytest.mark.parametrize("depth", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("order", [range(20), [5, 6, 2, 19, 0, 1, 1, 7], [25, 0], []], ids=str)
def test_items_in_any_order(depth, order):
    with Prefetch(lambda number: number * number, 20, depth) as ahead:
        assert [ahead.take(number) for number in order] == [number * number for number in order]


def test_one_thread_makes_each_item_once_and_in_order():
    made = []
    with Prefetch(lambda number: made.append((number, threading.get_ident())), 20, 3) as ahead:
        for number in range(20):
            ahead.take(number)
    assert [number for number, _ in made] == list(range(20))
    assert len({thread for _, thread in made} - {threading.get_ident()}) == 1


def test_depth_limits_prefetched_items():
    made = []
    with Prefetch(made.append, 10, 2) as ahead:
        ahead.take(3)
        deadline = time.monotonic() + 10
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert made == [3, 4, 5]
        for number in range(4, 10):
            ahead.take(number)
    assert made == list(range(3, 10))


class Mistake(Exception):
    pass


@pytest.mark.parametrize("depth", [0, 2])
def test_an_exception_reaches_the_caller_as_itself_and_for_its_item_only(depth):
    mistake = Mistake("image 3")

    def make(number):
        if number == 3:
            raise mistake
        return number

    with Prefetch(make, 10, depth) as ahead:
        assert [ahead.take(number) for number in (0, 1, 2)] == [0, 1, 2]
        with pytest.raises(Mistake) as caught:
            ahead.take(3)
        assert caught.value is mistake
        assert ahead.take(4) == 4


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_early_drops_what_was_made_ahead(taken):
    made = []

    def make(number):
        made.append(number)
        time.sleep(0.01)

    ahead = Prefetch(make, 1000, 500)
    for number in range(taken):
        ahead.take(number)
    ahead.close()
    assert len(made) < 20
    assert not threads()


def test_an_interrupted_caller_leaves_no_thread():
    def interrupted():
        with Prefetch(lambda number: number, 10, 2) as ahead:
            ahead.take(0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
