"""Arrays that meet only their like and plain numbers, as CuPy's do: what confuses host and device is found here."""

import functools
import operator

import numpy as np

PLAIN = (bool, int, float, str, type, slice, tuple, np.generic, np.dtype, type(None), type(Ellipsis))
MEMBERS = {"shape", "dtype", "size", "nbytes", "itemsize", "ndim"}
METHODS = {"view", "astype", "reshape", "ravel", "copy", "all", "any", "mean", "sum", "partition"}


class OnDevice(np.lib.mixins.NDArrayOperatorsMixin):
    """An array in the memory of a device."""

    def __init__(self, held):
        self.held = held

    def __getattr__(self, name):
        if name in MEMBERS:
            return getattr(self.held, name)
        if name in METHODS:
            return functools.partial(through, getattr(self.held, name))
        raise AttributeError(name)

    @property
    def T(self):
        return OnDevice(self.held.T)

    def get(self):
        return self.held.copy()

    def set(self, values):
        self.held[...] = values

    def __array__(self, *_):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        keywords |= {"out": tuple(map(inside, out))} if out else {}
        result = through(getattr(ufunc, method), *inputs, **keywords)
        return out[0] if out else result

    def __array_function__(self, function, _types, inputs, keywords):
        return through(function, *inputs, **keywords)

    def __getitem__(self, key):
        return through(operator.getitem, self, key)

    def __setitem__(self, key, value):
        self.held[inside(key)] = inside(value)

    def __len__(self):
        return len(self.held)

    def __bool__(self):
        return bool(self.held)

    def __float__(self):
        return float(self.held)

    def __int__(self):
        return int(self.held)


def inside(value):
    if isinstance(value, OnDevice):
        return value.held
    if isinstance(value, list):
        return [inside(one) for one in value]
    if isinstance(value, PLAIN):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def through(function, *inputs, **keywords):
    result = function(*map(inside, inputs), **keywords)
    return OnDevice(np.asarray(result)) if isinstance(result, np.ndarray | np.generic) else result
