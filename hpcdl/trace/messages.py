"""Messages of a trace: pairs of a send and the receive that took its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pandas as pd

_LINK: Final = ["source", "dest"]


def matched(events: pd.DataFrame) -> pd.DataFrame:
    """Return the matched messages of one case: columns ``send`` and ``recv``, labels of rows in ``events``.

    A send and a receive match that name each other and the same number of bytes, in the order of their ends.
    If the tasks of both ranks have sent and received alike, only ends of equal task numbers match. Events that
    were dropped leave their partner unmatched.
    """
    sent, received = (events["label"] == label for label in ("send", "recv"))
    if not (sent.any() and received.any()):
        return events[[]].iloc[:0].assign(send=events.index[:0], recv=events.index[:0])
    sends = _side(events[sent], "rank", "peer").rename(columns={"row": "send"})
    receives = _side(events[received], "peer", "rank").rename(columns={"row": "recv"})
    key = [*_LINK, "bytes", "task"]
    counts = (
        sends.groupby(key).size().to_frame("sent").join(receives.groupby(key).size().to_frame("got"), how="outer")
    )
    alike = (counts["sent"] == counts["got"]).groupby(level=_LINK).all().rename("alike").reset_index()
    sides = []
    for side in (sends, receives):
        merged = side.merge(alike, on=_LINK, how="left")
        merged["task"] = merged["task"].where(merged["alike"], -1)
        merged["turn"] = merged.groupby(key).cumcount()
        sides.append(merged)
    return sides[0].merge(sides[1], on=[*key, "turn"])[["send", "recv"]]


def _side(events: pd.DataFrame, source: str, dest: str) -> pd.DataFrame:
    """Return source, dest, bytes, task and row of sends or of receives, ascending in their ends."""
    ordered = events.sort_values("end", kind="stable")
    columns = {
        "source": ordered[source],
        "dest": ordered[dest],
        "bytes": ordered["bytes"],
        "task": ordered["task"],
    }
    return ordered[[]].assign(**columns, row=ordered.index).reset_index(drop=True)
