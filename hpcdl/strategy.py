"""What a training strategy's module says of it, and so which settings of a case it allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl import registry

if TYPE_CHECKING:
    from collections.abc import Mapping


def of_strategy(settings: Mapping[str, Any], name: str) -> Any:
    """What the strategy's module offers besides the strategy, None if it does not.

    ``AGGREGATES = False`` says that no aggregation is used, ``STOPS = False`` that there is no common step after
    which all could stop at the target, ``SCALES_LOSS = False`` that it cannot train in float16, ``OPTIMIZER =
    "L-BFGS"`` what it goes by instead of the case's optimizer, ``WEIGHS = True`` that a rank counts by its images,
    so that shares need not be equal. For the functions see :func:`ask_strategy`.
    """
    return registry.says("training", settings["training"]["name"], name)


def ask_strategy(settings: Mapping[str, Any], question: str, *facts: Any) -> Any:
    """What a function of the strategy's module answers, None if there is no such function.

    ``check(ranks, settings)`` raises ValueError for what cannot run, and ``check_rates(rate, steps, settings)``,
    with the learning rate of each step, for what would not be what it is called; ``title(ranks, settings)`` is
    what the literature calls the strategy with such settings; ``workers(ranks, settings)`` is the range of ranks
    that have batches, if not all do; ``mortal(ranks, settings)`` the range of ranks without any one of which
    training goes on, and then ``most_steps(ranks, settings)`` how many steps one of them can take of a global
    batch. Each is handed ``facts``, the ranks unless given, and all settings of the strategy, the defaults of
    those that the suite leaves out among them. ValueError: the suite leaves out one that has no default.
    """
    choice = settings["training"]
    in_full = registry.in_full(registry.find("training", choice["name"]), choice)
    answer = of_strategy(settings, question)
    return answer(*(facts or (settings["ranks"],)), in_full) if answer is not None else None


def aggregates(settings: Mapping[str, Any]) -> bool:
    """Whether the strategy sums vectors by an aggregation."""
    return of_strategy(settings, "AGGREGATES") is not False


def check(settings: Mapping[str, Any]) -> None:
    """Raise ValueError, led by its key, for what the case asks for and its strategy has not got."""
    name, own = settings["training"]["name"], of_strategy(settings, "OPTIMIZER")
    weighing = [one for one in registry.names("training") if of_strategy({"training": {"name": one}}, "WEIGHS")]
    for key, asked, able, why in (
        (
            "dtype",
            settings["dtype"] == "float16",
            of_strategy(settings, "SCALES_LOSS") is not False,
            "has no loss scaling, which float16 needs; bfloat16 and float32 need none",
        ),
        ("optimizer", settings["optimizer"], own is None, f"goes by {own}; leave this key out"),
        (
            "shares",
            settings["shares"],
            of_strategy(settings, "WEIGHS"),
            f"counts all ranks alike; these count images: {', '.join(weighing)}",
        ),
        (
            "stop_at_target",
            settings["stop_at_target"],
            of_strategy(settings, "STOPS") is not False,
            "has no common step after which to stop; leave this key out",
        ),
        (
            "aggregation",
            settings["aggregation"],
            aggregates(settings),
            "moves its messages itself; leave this key out",
        ),
        (
            "failure",
            settings["failure"],
            of_strategy(settings, "mortal") is not None,
            "does not go on when a rank dies",
        ),
    ):
        if asked and not able:
            raise ValueError(f"{key}: {name!r} {why}")
