"""Messages from each rank to each, over Gloo.

Gloo sends when it knows that the other side has a receive posted: posted late, a message takes two
network delays. So receives are posted for two rounds ahead, at the bounds that all ranks expect of
them. A message may be shorter than its receive. Where one is longer (DDP has formed other buckets
than were expected), its first part goes to that receive, and the rest, whose length is then known,
to another.

Tags keep all this apart from what else is sent in the group. They are never used for another state
or again after load_state_dict, because receives that were posted stay posted: a message for one that
had been dropped would block everything behind it. They go when the group goes or, at the latest, when
all ranks have gone on with new tags.
"""

import atexit
import collections
import queue
import threading
import time
import weakref
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence

import torch

from . import _core
from ._torch_versions import dist
from ._transport import AHEAD, LEAST, BoundOf, Lost, Plan, Round, Swap, announced

# Memory for a round that is posted ahead, as of C++'s groups.
_ROOM = 64 << 20
# Far from the small numbers that scripts use. Each channel has 16 tags.
_FIRST_TAG = 0x40000000
_TAGS = 16
_SLOTS = (
    4  # rounds that may be posted or under way; of each a tag for the message, one for its rest
)


class _Posted(NamedTuple):
    """Receives of a round, by rank."""

    size: int
    tag: int
    buffers: Dict[int, torch.Tensor]
    works: Dict[int, Any]


class _Broken:
    """What could not be begun: waiting for it says why."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


class Stream:
    """Rounds in an order that all ranks have."""

    def __init__(self, group: Any, rank: int, workers: int, tag: int) -> None:
        self._group, self._rank, self._workers, self._tag = group, rank, workers, tag
        self.plan = Plan()
        self._number = 0  # of the round that is posted next
        self._posted: Deque[_Posted] = collections.deque()
        self._spare: List[Dict[int, torch.Tensor]] = []
        self._lock = threading.Lock()  # of these

    def swap(
        self,
        outgoing: Sequence[torch.Tensor],
        one: Round,
        step: int,
        last: bool,
        bound_of: BoundOf,
    ) -> "PeerSwap":
        """Sends outgoing[r] to rank r. `last`: of its step."""
        bound = bound_of(one, step)
        if not self._posted:
            self._post(bound)
        posted, sends = self._posted.popleft(), []
        for i in range(1, self._workers):
            peer = (self._rank + i) % self._workers  # not all to the same rank first
            message, rest = outgoing[peer][: posted.size], outgoing[peer][posted.size :]
            sends.append(self._begin("send", message, peer, posted.tag))
            if rest.numel() > 0:
                sends.append(self._begin("send", rest, peer, posted.tag + 1))
        for next_one, next_step in self.plan.begin(one, step, last)[len(self._posted) :]:
            size = bound_of(next_one, next_step)
            if size * (self._workers - 1) > _ROOM:
                break
            self._post(size)
        return PeerSwap(self, posted, sends, outgoing, bound)

    def receive(self, buffer: torch.Tensor, peer: int, tag: int) -> Any:
        return self._begin("recv", buffer, peer, tag)

    def reuse(self, buffers: Dict[int, torch.Tensor]) -> None:
        """Of a round that is over. It may be another thread that says so."""
        with self._lock:
            self._spare = [*self._spare[-AHEAD:], buffers]

    def _begin(self, what: str, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        try:
            return getattr(self._group, what)([tensor], peer, tag)
        except Exception as error:  # the other peers are to get theirs all the same
            return _Broken(error)

    def _buffers(self, size: int) -> Dict[int, torch.Tensor]:
        with self._lock:
            for i, buffers in enumerate(self._spare):
                if all(buffer.numel() == size for buffer in buffers.values()):
                    return self._spare.pop(i)
        peers = [r for r in range(self._workers) if r != self._rank]
        return {r: torch.empty(size, dtype=torch.uint8) for r in peers}

    def _post(self, size: int) -> None:
        buffers = self._buffers(size)
        for buffer in buffers.values():
            buffer[:LEAST].zero_()  # no length is left from before
        tag = self._tag + 2 * (self._number % _SLOTS)
        self._number += 1
        works = {r: self.receive(buffer, r, tag) for r, buffer in buffers.items()}
        self._posted.append(_Posted(size, tag, buffers, works))


class PeerSwap(Swap):
    def __init__(
        self,
        stream: Stream,
        posted: _Posted,
        sends: List[Any],
        outgoing: Sequence[torch.Tensor],
        bound: int,
    ) -> None:
        self._stream, self._posted, self._sends = stream, posted, sends
        self._outgoing, self._bound = outgoing, bound

    def wait(self) -> List[torch.Tensor]:
        posted = self._posted
        for peer, work in posted.works.items():
            _wait(work, peer)
        found, rests = dict(posted.buffers), []
        for peer, buffer in posted.buffers.items():
            size = announced(buffer)
            if size > self._bound:
                _core.fail(
                    "limit_exceeded",
                    "receive",
                    f"rank {peer}",
                    f"announces {size} bytes, the limit is {self._bound}",
                )
            if size > posted.size:
                found[peer] = torch.empty(size, dtype=torch.uint8)
                found[peer][: posted.size] = buffer
                rest = found[peer][posted.size :]
                rests.append((peer, self._stream.receive(rest, peer, posted.tag + 1)))
            else:
                found[peer] = buffer[: max(size, LEAST)]
        for peer, work in rests:
            _wait(work, peer)
        return [found.get(rank, own) for rank, own in enumerate(self._outgoing)]

    def done(self) -> None:
        for work in self._sends:
            try:
                work.wait()
            except Exception:  # noqa: S110: receiving from that rank says it, too
                pass
        self._sends = []
        self._stream.reuse(self._posted.buffers)


def _wait(work: Any, peer: int) -> None:
    try:
        work.wait()
    except Exception as error:
        raise Lost(peer, error) from error


class _Waiter:
    """A thread that waits for messages and adds them, because Gloo's messages have no futures. It
    sleeps while there is nothing to wait for, and ends with what it belongs to, or with the script.
    """

    # A thread may live longer than what it belongs to: it ends when its work is done.
    _queues: "weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue[Any]]" = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        thread = threading.Thread(
            target=_Waiter._run, args=(self._queue,), name="dgc-exchange", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._queue.put, None).atexit = False
        _Waiter._queues[thread] = self._queue

    @staticmethod
    def _run(works: "queue.SimpleQueue[Optional[Callable[[], None]]]") -> None:
        while True:
            work = works.get()
            if work is None:
                return
            work()
            del work  # what it holds goes now, not with the next one

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    @staticmethod
    def end_all(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread, works in list(_Waiter._queues.items()):
            works.put(None)
            thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _end_waiters() -> None:
    """A thread that needs the interpreter when that has begun to end would abort the process: as
    when it drops the last of a state's messages."""
    _Waiter.end_all(2.0)  # a rank that was lost may be waited for much longer


class Peers:
    """A state's messages to and from all other ranks."""

    def __init__(self, owner: Any, group: Any, rank: int, workers: int, channel: int) -> None:
        self.owner = weakref.ref(owner)
        weakref.finalize(owner, self.rest).atexit = False
        tag = _FIRST_TAG + channel * _TAGS
        # The second rounds of buckets begin whenever the first have ended: an order of their own.
        self.first, self.second = (
            Stream(group, rank, workers, tag + i * 2 * _SLOTS) for i in range(2)
        )
        self._waiter: Optional[_Waiter] = None

    def submit(self, work: Callable[[], None]) -> None:
        """Runs work() on this state's thread, after what came before."""
        if self._waiter is None:
            self._waiter = _Waiter()
        self._waiter.submit(work)

    def rest(self) -> None:
        """Nothing is sent any more; what was posted stays."""
        self._waiter = None


class _Channels:
    """Of a process group."""

    def __init__(self) -> None:
        self.next = 0
        self.used: List[Peers] = []
        self.left: List[Peers] = []  # by all ranks, when the next round has come


_channels: "weakref.WeakKeyDictionary[Any, _Channels]" = weakref.WeakKeyDictionary()


def open_peers(owner: Any, group: Any, rank: int, workers: int) -> Peers:
    """On all ranks at once: tags that none of them has used in this group."""
    channels = _channels.setdefault(group, _Channels())
    number = torch.tensor([channels.next])
    dist.all_reduce(number, op=dist.ReduceOp.MAX, group=group)
    channels.next = int(number.item()) + 1
    left = [peers for peers in channels.used if peers.owner() in (None, owner)]
    for peers in left:
        peers.rest()
    channels.left += left
    channels.used = [peers for peers in channels.used if peers not in left]
    channels.used.append(Peers(owner, group, rank, workers, channels.next - 1))
    return channels.used[-1]


def forget_left(group: Any) -> None:
    """After a round of new tags: what was sent before it to receives of old ones has come, too."""
    channels = _channels.get(group)
    if channels is not None and channels.left:
        channels.left = []
