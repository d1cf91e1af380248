"""An exchange: some gradients of a step on their way from this rank to the sum over all ranks.

Order: compress; send to all ranks; check everybody's message; add them, in the order of the ranks;
commit. Where any rank failed, its message says so, all ranks raise the same error, and what was
selected goes back.
"""

import atexit
import math
import time
import weakref
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from . import _core
from ._residuals import CoreResiduals, Given, Part
from ._rounds import agree, begin_round, has_owners, slot_for, wait_for
from ._transport import Gathered, Round, Swap
from .state import DGCState, StepStats

# What a hook promises: a bucket's buffer, with the sum over all ranks in it.
Sums = torch.futures.Future[torch.Tensor]


class Piece(NamedTuple):
    """Gradients in one buffer: a bucket of DDP, or all of a sharded model."""

    buffer: torch.Tensor
    work: torch.Tensor  # the same in fp32
    parts: List[Part]
    parameters: List[Tuple[int, torch.Tensor]]
    future: Any  # for buckets that wait


class Target(NamedTuple):
    """Where sums go to in place of the buffers."""

    parts: Sequence[Part]
    alpha: float  # that they are multiplied by


class Exchange(NamedTuple):
    """Messages that are under way."""

    pieces: Sequence[Piece]
    parts: List[Part]  # of these
    notice: _core.Notice  # of this rank
    loss_scale: float
    swap: Swap
    life: Any  # of the state; load_state_dict begins another
    last: bool  # of its step
    target: Optional[Target]


class Chosen(NamedTuple):
    """The second round of an exchange with owners."""

    swap: Swap
    notice: _core.Notice
    present: List[bool]  # on any rank
    cause: Optional[Exception]  # why this rank could not choose; the others know it with this round


class _Callback:
    """What a thread of the process group calls. Such a thread must not need the interpreter when
    that has begun to end, which would abort the process: the end of the script waits until it has
    let go of the last of these. Dead weak references, and no counter, tell that: nothing of Python
    runs in the thread between the death of one and the release of the interpreter's lock."""

    __slots__ = ("_call", "__weakref__")
    made: "List[weakref.ref[_Callback]]" = []

    def __init__(self, call: Any) -> None:
        self._call = call
        _Callback.made = [one for one in _Callback.made if one() is not None] + [weakref.ref(self)]

    def __call__(self, future: Any) -> torch.Tensor:
        call, self._call = self._call, None  # what it holds goes here, not with the object
        result: torch.Tensor = call(future)
        return result


@atexit.register
def _wait_for_callbacks() -> None:
    deadline = time.monotonic() + 2.0  # a rank that was lost may leave one that is never called
    while any(one() is not None for one in _Callback.made) and time.monotonic() < deadline:
        time.sleep(0.001)


def new_future(device: torch.device) -> Sums:
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


def sorted_parts(pieces: Sequence[Piece]) -> List[Part]:
    return sorted((part for piece in pieces for part in piece.parts), key=lambda part: part.tensor)


def skip(state: DGCState, pieces: Sequence[Piece]) -> None:
    """Gradients become Inf where a scaler is to notice, else zero."""
    state.skipped = True
    state.stats = StepStats(
        state.step,
        True,
        state.schedule.ratio_at(state.step),
        0,
        0,
        0,
        0.0,
        0.0,
        1.0,
        state._messages,
    )
    state._messages, state._bytes = 0, [0, 0]
    if state._peers is not None:
        state._peers.first.plan.skip()
    for piece in pieces:
        piece.buffer.fill_(math.inf if state.scaler is not None else 0.0)


def _parameters_hash(state: DGCState, pieces: Sequence[Piece]) -> Optional[int]:
    """None when it is not time to compare."""
    every = state.check_parameters_every
    # The first step says whether all began alike; short runs have no other comparison.
    if every == 0 or state.step == 0 or (state.step != 1 and state.step % every != 0):
        return None
    value = 0
    for _, parameter in sorted(
        (p for piece in pieces for p in piece.parameters), key=lambda p: p[0]
    ):
        here = parameter.detach().cpu()
        here = here if here.is_contiguous() else here.contiguous()
        value = _core.hash64(here.data_ptr(), here.numel() * here.element_size(), value)
    return value


def _cause(error: Exception) -> Tuple[str, str]:
    """Code and text of an error, for the other ranks."""
    code = getattr(error, "code", "")
    return (code, str(error)) if code else ("internal", f"hook: {type(error).__name__}: {error}")


def send(
    state: DGCState,
    pieces: Sequence[Piece],
    last: bool,
    loss_scale: float,
    norm: Optional[float],
    refused: Optional[Exception] = None,
    target: Optional[Target] = None,
) -> Exchange:
    """Begins an exchange. `refused`: why this rank cannot take part; it tells the others."""
    agree(state)
    if state._control is not None:
        state._control.bucket(last)
        if state._exchanges == 0:
            state._control.before_step(state)
    parts = sorted_parts(pieces)
    present = [part.present for part in parts]
    owners = has_owners(state)
    one = Round("slice" if owners else "message", tuple(part.tensor for part in parts))
    with state._lock:
        state.skipped = False
        number = state._exchanges
        state._exchanges += 1
        state._pending += 1
        state._last_sent = last
        slot, size = slot_for(state, one), 0
        try:
            if refused is not None:
                raise refused
            if state._failure is not None:
                raise state._failure
            notice = _core.Notice(number, present, parameters=_parameters_hash(state, pieces))
            given = Given(parts, notice, 1.0 / loss_scale, norm)
            if isinstance(state._residuals, CoreResiduals) and owners:
                outgoing = state._residuals.compress_for_owners(given)
            else:
                size = state._residuals.compress(given, slot)
        except Exception as error:  # the others wait for a message: tell them, and raise with them
            notice = _core.Notice(number, present, failure=_cause(error))
            size = state._residuals.notice_message(notice, slot)
        swap = begin_round(
            state, slot, [slot[:size]] * state._workers if size else outgoing, one, last
        )
    if isinstance(swap, Gathered):
        state._on_wire[number] = swap.tensors
    return Exchange(pieces, parts, notice, loss_scale, swap, state._lock, last, target)


def then_finish(state: DGCState, exchange: Exchange) -> Sums:
    """The sums, when all messages have come; nobody waits for them here."""
    swap = exchange.swap
    if isinstance(swap, Gathered):
        answer: Sums = swap.work.get_future().then(
            _Callback(lambda future: _finish(state, exchange, future.wait))
        )
        return answer
    peers = state._peers
    assert peers is not None
    sums = new_future(exchange.pieces[-1].buffer.device)

    def finish(chosen: Union[Chosen, Exception, None] = None) -> None:
        try:
            result: Union[torch.Tensor, Exception] = _finish(state, exchange, chosen=chosen)
        except Exception as error:
            result = error
        sums.set_result(result)  # type: ignore[arg-type]
        swap.done()

    def choose() -> None:
        try:
            chosen: Union[Chosen, Exception] = _choose(state, exchange)
        except Exception as error:
            chosen = error
        # First the slices of other buckets that have come by now.
        peers.submit(lambda: finish(chosen))

    answer = sums.then(value_or_error)
    peers.submit(choose if has_owners(state) else finish)
    return answer


def value_or_error(future: Any) -> torch.Tensor:
    """Future.set_exception is for waiters in Python: DDP would take the exception for the result."""
    result: Union[torch.Tensor, Exception] = future.value()
    if isinstance(result, Exception):
        raise result
    return result


def _finish(
    state: DGCState,
    exchange: Exchange,
    wait: Any = None,
    chosen: Union[Chosen, Exception, None] = None,
) -> torch.Tensor:
    try:
        commit(state, exchange, _receive(state, exchange, wait, chosen))
    except Exception as error:
        fail(state, error, exchange)
        for piece in exchange.pieces[:-1]:
            piece.future.set_result(error)
        raise
    for piece in exchange.pieces[:-1]:
        piece.future.set_result(piece.buffer)
    return exchange.pieces[-1].buffer


def receive(state: DGCState, exchange: Exchange) -> List[int]:
    """Waits for all messages, and puts their sums into the buffers. Returns the tensors of which no
    rank had a gradient."""
    try:
        return _receive(state, exchange)
    finally:
        exchange.swap.done()


def _receive(
    state: DGCState,
    exchange: Exchange,
    wait: Any = None,
    chosen: Union[Chosen, Exception, None] = None,
) -> List[int]:
    if isinstance(chosen, Exception):
        raise chosen
    if not has_owners(state):
        parcels = state._residuals.check(
            wait_for(state, exchange.swap, wait), exchange.notice, exchange.parts
        )
        with exchange.life:  # not while another bucket is compressed
            state._residuals.feed_back(parcels)
        return _add(state, exchange, parcels, parcels.merged.present)
    chosen = chosen or _choose(state, exchange)
    try:
        messages = wait_for(state, chosen.swap)
        if chosen.cause is not None:
            raise chosen.cause
        parcels = state._residuals.check(messages, chosen.notice, exchange.parts)
        return _add(state, exchange, parcels, chosen.present)
    finally:
        chosen.swap.done()


def _choose(state: DGCState, exchange: Exchange) -> Chosen:
    """Waits for the slices that this rank owns, and begins the second round. Whatever is wrong with
    the first, there is a second: other ranks may not know, and wait for it."""
    parts, residuals = exchange.parts, state._residuals
    assert isinstance(residuals, CoreResiduals)
    one = Round("chosen", tuple(part.tensor for part in parts))
    messages = wait_for(state, exchange.swap)
    back = _core.Notice(exchange.notice.bucket, [])
    cause, present = None, []
    with exchange.life:  # not while another bucket is compressed
        try:
            slices = residuals.check(messages, exchange.notice, parts)
            present = slices.merged.present
            message = residuals.choose(parts, slices, back)
        except Exception as error:
            cause = error
            notice = _core.Notice(exchange.notice.bucket, [], failure=_cause(error))
            slot = slot_for(state, one)
            message = slot[: residuals.notice_message(notice, slot)]
        swap = begin_round(state, message, [message] * state._workers, one, exchange.last)
    return Chosen(swap, back, present, cause)


def _add(
    state: DGCState, exchange: Exchange, parcels: _core.Parcels, present: Sequence[bool]
) -> List[int]:
    """Puts the sums into the buffers. Returns the tensors of which no rank had a gradient."""
    pieces, parts = exchange.pieces, exchange.parts
    if exchange.target is not None:
        state._residuals.add(parcels, *exchange.target)
        return []
    for piece in pieces:
        piece.work.zero_()
    state._residuals.add(parcels, parts, exchange.loss_scale)
    frozen = [part for part, used in zip(parts, present) if not used]
    for part in frozen:
        part.values.zero_()
    for piece in pieces:
        if piece.work is not piece.buffer:
            piece.buffer.copy_(piece.work)
    return [part.tensor for part in frozen]


def commit(state: DGCState, exchange: Exchange, frozen: Sequence[int]) -> None:
    """This exchange was delivered. With the last one, the step is."""
    with exchange.life:
        if exchange.life is not state._lock:
            return
        state._frozen += frozen
        state._pending -= 1
        if state._last_sent and state._pending == 0:
            _commit_step(state)


def _commit_step(state: DGCState) -> None:
    elements = sum(spec.elements for spec in state._specs)
    message, padded = state._bytes
    state.stats = StepStats(
        state.step,
        False,
        state.schedule.ratio_at(state.step),
        sum(state._residuals.sent()),
        message,
        padded,
        4.0 * elements / padded,
        8.0 * elements / (state._workers * padded) if state._workers > 1 else 0.0,
        state._residuals.clip_factor,
        state._messages,
    )
    state._residuals.commit(state._frozen)
    if state._control is not None:
        state._control.committed()
    state._exchanges, state._last_sent, state._frozen, state._bytes = 0, False, [], [0, 0]
    state._messages = 0


def fail(state: DGCState, error: Exception, exchange: Optional[Exchange] = None) -> None:
    """The step is over: what was selected goes back, and stays accumulated."""
    life = exchange.life if exchange is not None else state._lock
    with life:
        if state._failure is None and life is state._lock:
            state._failure = error
            state._residuals.restore()
