"""Layers whose forward and backward are recorded once and then started with one call each: CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.kernels.cupy.device import Device
    from hpcdl.nn.layer import Bound

_Key = tuple[Any, ...]


class _Stretch(NamedTuple):
    """What was recorded: how to start it, where it reads, what it answers."""

    start: Callable[[], None]
    inlet: Array
    outlet: Array | None


class RecordedBound:
    """A layer at work that is recorded for each batch size it is trained with.

    The first forward and backward of a size just run, so that plans are chosen, kernels compiled and memory is
    there. The second ones are recorded, as a pair, because a backward reads what its forward has kept; a forward
    without a backward is recorded again. From then on both are started as graphs. Answers are in the recordings'
    own memory, the same each time, so that the next layer's recording finds its input in place.
    """

    def __init__(self, device: Device, bound: Bound) -> None:
        self._device = device
        self._bound = bound
        self._ran: set[_Key] = set()
        self._forwards: dict[_Key, _Stretch] = {}
        self._backwards: dict[_Key, _Stretch] = {}
        self._last: _Key = ()

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.layer.Bound`."""
        if not x.size:
            self._last = ()
            return self._bound.forward(x, train)
        self._last = key = (x.shape, train)
        if key in self._backwards:
            answer = _replay(self._forwards[key], x)
        elif key in self._ran:
            self._forwards[key] = stretch = self._record(x, lambda: self._bound.forward(x, train))
            answer = stretch.outlet
        else:
            answer = self._device.pooled(lambda: self._bound.forward(x, train))
        assert answer is not None, "a forward has outputs"
        return answer

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """See :class:`hpcdl.nn.layer.Bound`."""
        key = self._last
        if key in self._backwards:
            return _replay(self._backwards[key], dy)
        if key in self._forwards:
            self._backwards[key] = stretch = self._record(dy, lambda: self._bound.backward(dy, wanted))
            return stretch.outlet
        if key:
            self._ran.add(key)
            return self._device.pooled(lambda: self._bound.backward(dy, wanted))
        return self._bound.backward(dy, wanted)

    def _record(self, inlet: Array, work: Callable[[], Array | None]) -> _Stretch:
        start, outlet = self._device.capture(work)
        return _Stretch(start, inlet, outlet)


def _replay(stretch: _Stretch, array: Array) -> Array | None:
    if array is not stretch.inlet:
        stretch.inlet[...] = array
    stretch.start()
    return stretch.outlet
