"""Learning-rate schedules: factors on the configured learning rate.

A :data:`Schedule` is a function (step, total) -> factor: ``step`` counts updates from 0, ``total`` >= 1 is the
number of updates of the whole training. Settings are fractions of the training.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any, Final

from hpcdl.optim.parts.protocol import fraction, not_negative, positive

Schedule = Callable[[int, int], float]

MIN_PERIOD: Final = 1e-7
"""Smallest distance of milestones, as a fraction of the training: one step of the longest training."""
RULES: Final = {"linear": 1.0, "square_root": 0.5}
"""Exponents of the scale by batch."""
_TOLERANCE: Final = 1e-9
"""Tolerance in steps: a milestone at 0.07 of 100 steps is step 7, although 0.07 * 100 > 7 in floating point."""


def constant() -> Schedule:
    """Constant: 1 at every step."""
    return lambda _step, _total: 1.0


def step(*, factor: float = 0.1, at: list[float] | tuple[float, ...] = (), every: float | None = None) -> Schedule:
    """Steps: ``factor``^k after k milestones.

    Milestones are fractions of the training in (0, 1): those listed in ``at``, or the multiples of ``every``. A
    milestone takes effect at the first step at or after it. Source: Caffe's ``step`` and ``multistep``; Goyal et
    al. 2017 (section 5.1) use a factor 0.1 at 1/3, 2/3 and 8/9.

    Raises ValueError unless exactly one of ``at`` and ``every`` is given, or for a fraction outside (0, 1).
    """
    positive("factor", factor)
    if not isinstance(at, list | tuple):
        raise ValueError(f"at must be a list of fractions of the training, not {at!r}")  # noqa: TRY004
    if (every is None) == (not at):
        raise ValueError(
            "schedule step: give either at (a list of fractions of the training) or every (one fraction)"
        )
    if every is not None:
        period = fraction("every", positive("every", every))
        if period < MIN_PERIOD:
            raise ValueError(f"every must be at least {MIN_PERIOD}, but is {every!r}")
        return lambda now, total: factor ** math.floor(now / (period * total) + _TOLERANCE)
    milestones = [fraction("at", positive("at", milestone)) for milestone in at]
    return lambda now, total: factor ** sum(now >= milestone * total - _TOLERANCE for milestone in milestones)


def polynomial(*, power: float = 0.5) -> Schedule:
    """Polynomial: (1 - step / total)^power, and 0 from ``step`` = ``total`` on.

    Source: FireCaffe (Iandola et al. 2016), with power 0.5. Raises ValueError unless power >= 0.
    """
    not_negative("power", power)
    # after the last step an asynchronous server may still receive gradients
    return lambda now, total: float(max(0.0, 1 - now / total) ** power)


def with_warmup(
    after: Schedule,
    *,
    warmup: float = 0.0,
    warmup_steps: int = 0,
    warmup_from: float = 1.0,
    base_batch: int | None = None,
    rule: str = "linear",
    global_batch: int | None = None,
) -> Schedule:
    """Scale ``after`` by k = global_batch / base_batch, or its root, with a linear warm-up from ``warmup_from``.

    The warm-up takes the fraction ``warmup`` of the training, rounded to steps, or ``warmup_steps`` steps. It
    starts at ``warmup_from`` (1: the unscaled rate) and ends at the scaled value of ``after``. Milestones of
    ``after`` do not move. Without ``base_batch``, k is 1. ``rule``: "linear", or "square_root" for the root of k
    (Krizhevsky 2014, arXiv 1404.5997, section 5).

    Source: Goyal et al. 2017, sections 2.1 (linear scaling: base_batch 256 at rate 0.1) and 2.2 (gradual warm-up
    over five epochs, so warmup = 5 / epochs). Raises ValueError for values out of range, for both lengths, for
    ``base_batch`` without ``global_batch``, and for a warm-up from 1 without ``base_batch``.
    """
    share = fraction("warmup", warmup)
    length = not_negative("warmup_steps", warmup_steps)
    low = not_negative("warmup_from", warmup_from)
    if share and length:
        raise ValueError("give either warmup (a fraction of the training) or warmup_steps, not both")
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    if base_batch is None:
        if (share or length) and low == 1:
            raise ValueError("a warm-up needs base_batch, to increase to, or a warmup_from below 1, to start from")
        scale = 1.0
    elif global_batch is None:
        raise ValueError("base_batch scales the rate by global_batch / base_batch, but global_batch is not set")
    else:
        scale = (positive("global_batch", global_batch) / positive("base_batch", base_batch)) ** RULES[rule]

    def multiplier(now: int, total: int) -> float:
        end = round(share * total) if share else length
        if now >= end:
            return scale * after(now, total)
        high = scale * after(min(int(end), total), total)
        return low + (high - low) * now / end

    return multiplier


SCHEDULES: Final[dict[str, Callable[..., Schedule]]] = {
    "constant": constant,
    "step": step,
    "polynomial": polynomial,
}
"""Schedules by name; :func:`schedule` adds warm-up and scale to any of them."""


def schedule(name: str, **settings: Any) -> Schedule:
    """Return the schedule ``name`` with its own settings and, optionally, those of :func:`with_warmup`.

    Raises ValueError, with the nearest valid word, for an unknown name or setting, and for an invalid value.
    """
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}{_nearest(name, SCHEDULES)}")
    shape = SCHEDULES[name]
    specific = [*inspect.signature(shape).parameters]
    common = [*inspect.signature(with_warmup).parameters][1:]
    for setting in settings:
        if setting not in specific and setting not in common:
            raise ValueError(
                f"schedule {name}: unknown setting {setting!r}{_nearest(setting, [*specific, *common])}"
            )
    return with_warmup(
        shape(**{key: value for key, value in settings.items() if key in specific}),
        **{key: value for key, value in settings.items() if key in common},
    )


def _nearest(word: str, valid: Collection[str]) -> str:
    close = difflib.get_close_matches(word, list(valid), 1)
    return f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(valid)}"
