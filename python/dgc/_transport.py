"""How a rank's messages of a round get to all other ranks.

Gloo: point to point (_peers.py), one message to each rank, as long as it is. Other backends: one
all-gather of slots that all have the size of the bound, which every rank knows.
"""

import ctypes
import struct
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch

from ._torch_versions import dist

# Where a message says how long it is (docs/format.md).
_LENGTH_AT = 24
LEAST = 40  # bytes of a message
# Rounds that receives are posted for. With one, a message that is sent as soon as the one before it
# has arrived would have to wait for the news that there is room: a delay more.
AHEAD = 2


class Round(NamedTuple):
    """What a round carries."""

    kind: str  # "message", "notice"; with owners "slice" and "chosen"
    tensors: Tuple[int, ...]


# Bytes that a message of a round cannot exceed at a step: the same on all ranks.
BoundOf = Callable[[Round, int], int]


class Lost(Exception):
    """Another rank cannot be reached any more."""

    def __init__(self, rank: Optional[int], cause: Exception) -> None:
        super().__init__(str(cause))
        self.subject = "" if rank is None else f"rank {rank}, "


def announced(message: torch.Tensor) -> int:
    """The length that a message on the CPU says it has."""
    length: int = struct.unpack("<Q", ctypes.string_at(message.data_ptr() + _LENGTH_AT, 8))[0]
    return length


class Swap:
    """A round under way."""

    def wait(self) -> List[torch.Tensor]:
        """The messages of all ranks, on the CPU. They are valid until done(). Raises Lost."""
        raise NotImplementedError

    def done(self) -> None:
        """The messages are not needed any more. Waits until those of this rank have left."""


class Gathered(Swap):
    """By an all-gather."""

    def __init__(self, group: Any, device: torch.device, slot: torch.Tensor, workers: int) -> None:
        sent = slot.to(device)
        everything = torch.empty(workers, sent.numel(), dtype=torch.uint8, device=device)
        self._everything = everything
        # The group's thread drops its tensors after the callback: while Python holds them, too, it
        # need not come back to Python for that.
        self.tensors = (sent, list(everything.unbind()))
        self.work = dist.all_gather(self.tensors[1], sent, group=group, async_op=True)

    def wait(self) -> List[torch.Tensor]:
        return self.after(self.work.wait)

    def after(self, wait: Callable[[], Any]) -> List[torch.Tensor]:
        """The same, with another way to wait for the all-gather."""
        try:
            wait()
        except Exception as error:
            raise Lost(None, error) from error
        slots = self._everything.cpu().unbind()  # one copy, and one wait for it
        return [slot[: min(max(announced(slot), LEAST), slot.numel())] for slot in slots]


class Plan:
    """Which rounds follow: the steps of a training are alike, except where DDP forms its buckets
    anew. All ranks make the same rounds, and expect the same."""

    def __init__(self) -> None:
        self._before: List[Round] = []  # of the step before
        self._now: List[Round] = []

    def begin(self, one: Round, step: int, last: bool) -> List[Tuple[Round, int]]:
        """The rounds that are expected after this one, with their steps; none if nobody knows."""
        self._now.append(one)
        at = len(self._now)
        known = self._now if last else self._before
        if last:
            self._before, self._now = self._now, []
        elif not known or known[:at] != self._now:
            return []
        return [(known[(at + i) % len(known)], step + (at + i) // len(known)) for i in range(AHEAD)]

    def skip(self) -> None:
        """This step begins anew."""
        self._now = []
