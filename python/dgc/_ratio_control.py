"""ratio="auto": sends more than the run needs where the network has room for it. `dgc train` does the
same (src/train/ratio_control.cpp)."""

import statistics
import time
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

import torch

from . import _core
from ._agreement import gather_texts, wire_device
from ._torch_versions import dist

if TYPE_CHECKING:
    from .state import DGCState

_DECISIONS = 50  # in a run whose number of steps is known
_LEAST_STEPS = 10  # between two of them
_STEPS = 50  # where it is not known
# Smaller changes are left: they are noise of the clock.
_WORTH_CHANGING = 0.1


# Bytes of the messages that measure a link.
_SMALL, _LARGE = 1, 1 << 20

Link = Tuple[float, float]  # bytes a second, and seconds of delay


class RatioDecision(NamedTuple):
    """What is sent from a step on, at the least, and what it was decided by."""

    from_step: int
    ratio: float
    compute_seconds: float  # of a step, the mean of all ranks


class RatioControl:
    """One rank's part. Decisions are the same on all ranks, which compare their clocks."""

    def __init__(self, least: float, steps: Optional[int], link: Optional[str]) -> None:
        self.decisions: List[RatioDecision] = []
        self._least = least
        self._link: Optional[Link] = _core.parse_link(link) if link is not None else None
        self._every = max(_LEAST_STEPS, steps // _DECISIONS) if steps else _STEPS
        self._steps_end = steps
        self._begin()

    def _begin(self) -> None:
        self._compute: List[float] = []  # seconds of steps, since the last decision
        self._hidden: List[float] = []  # of these, while buckets may be on their way
        self._committed: Optional[float] = None
        self._first: Optional[float] = None

    def restored(self, decisions: List[RatioDecision]) -> None:
        """The state was loaded: time that passed meanwhile is nobody's step."""
        self.decisions = list(decisions)
        self._begin()

    # ---- the clock of a step ---------------------------------------------------------------------

    def committed(self) -> None:
        self._committed, self._first = time.monotonic(), None

    def bucket(self, last: bool) -> None:
        """A bucket is ready to be sent."""
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        if last and self._committed is not None:
            self._compute.append(now - self._committed)
            self._hidden.append(now - self._first)

    # ---- deciding --------------------------------------------------------------------------------

    def before_step(self, state: "DGCState") -> None:
        """Of each step, before anything of it is sent. A collective call."""
        if state.step == 0 or state.step % self._every != 0 or not self._compute:
            return
        if self._steps_end is not None and state.step + 1 >= self._steps_end:
            return
        device = wire_device(state.process_group, next(iter(state._ids)).device)
        if self._link is None:
            self._link = measured_link(state.process_group, device)
        mine = f"{statistics.median(self._compute)!r} {statistics.median(self._hidden)!r}"
        # Whatever each rank has: the same of all.
        clocks = [
            [float(seconds) for seconds in text.split()]
            for text in gather_texts(state.process_group, device, mine)
        ]
        compute, hidden = (sum(clock[i] for clock in clocks) / len(clocks) for i in range(2))
        self._compute, self._hidden = [], []
        before = self.decisions[-1].ratio if self.decisions else self._least
        ratio = _core.free_ratio(
            tensors=[(s.name, s.shape, s.dense) for s in state._specs],
            options=state._options.of_compressor(),
            algorithm=state._options.algorithm,
            workers=state._workers,
            link=self._link,
            compute=compute,
            hidden=hidden,
            least=self._least,
        )
        if abs(ratio - before) <= _WORTH_CHANGING * before:
            return
        # Room for the messages of this step was made already.
        self.decisions.append(RatioDecision(state.step + 1, ratio, compute))
        state._follow(self.decisions)


def measured_link(group: Any, device: torch.device) -> Link:
    """How fast a large message goes between all ranks, and what a small one takes: of the slowest
    rank, the same on all. A collective call."""
    count = dist.get_world_size(group)

    def seconds(size: int, tries: int) -> float:
        mine = torch.zeros(size, dtype=torch.uint8, device=device)
        everything = [torch.empty_like(mine) for _ in range(count)]
        times = []
        for _ in range(tries):
            begun = time.monotonic()
            gather: Any = dist.all_gather
            gather(everything, mine, group=group)
            float(everything[0][0])  # on a GPU, it has come by now
            times.append(time.monotonic() - begun)
        return min(times)

    seconds(_SMALL, 1)  # opens connections
    delay = seconds(_SMALL, 5)
    rate = (_LARGE - _SMALL) * max(1, count - 1) / max(seconds(_LARGE, 2) - delay, 1e-6)
    texts = gather_texts(group, device, f"{rate!r} {delay!r}")
    measured = [[float(number) for number in text.split()] for text in texts]
    return min(one[0] for one in measured), max(one[1] for one in measured)
