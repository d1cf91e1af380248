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
from ._peers import PeerSwap, forget_left, open_peers
from ._residuals import Part
from ._torch_versions import dist, group_of, is_gloo
from ._transport import Gathered, Lost, Round, Swap
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


class Exchange(NamedTuple):
    """Messages that are under way."""

    pieces: Sequence[Piece]
    parts: List[Part]  # of these
    notice: _core.Notice  # of this rank
    loss_scale: float
    swap: Swap
    life: Any  # of the state; load_state_dict begins another


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


def agree(state: DGCState) -> None:
    """Before the first step, and after loading: do all ranks mean the same? (Sizes of messages
    follow from it.)"""
    if state._agreed:
        return
    if (dist.get_rank(state.process_group), dist.get_world_size(state.process_group)) != (
        state._rank,
        state._workers,
    ):
        _core.fail(
            "state_mismatch",
            "hook",
            "process group",
            f"this state is of rank {state._rank} of {state._workers}",
            "make a new state, and load_state_dict the list of what all ranks saved",
        )
    text = f"{state._description()}\nstep {state.step}"
    device = wire_device(state, next(iter(state._ids)).device)
    difference = _core.first_difference(gather_texts(state.process_group, device, text))
    if difference is not None:
        _core.fail(
            "configuration_mismatch",
            "hook",
            f"rank {difference[0]}",
            difference[1],
            "start all ranks with the same model, options and checkpoint",
        )
    group = group_of(state.process_group)
    if is_gloo(group):
        state._peers = open_peers(state, group, state._rank, state._workers)
    state._agreed = True


def gather_texts(group: Any, device: torch.device, text: str) -> List[str]:
    """The texts of all ranks. Not all_gather_object, which needs NumPy: PyTorch does not install
    it."""
    gather: Any = dist.all_gather
    own = bytearray(text.encode())
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    gather(sizes, torch.tensor([len(own)], device=device), group=group)
    room = int(max(size.item() for size in sizes))
    padded = torch.frombuffer(own + bytes(room - len(own)), dtype=torch.uint8).to(device)
    received = [torch.empty_like(padded) for _ in sizes]
    gather(received, padded, group=group)
    return [bytes(raw[: int(size.item())].tolist()).decode() for raw, size in zip(received, sizes)]


def wire_device(state: DGCState, device: torch.device) -> torch.device:
    return device if dist.get_backend(state.process_group) == "nccl" else torch.device("cpu")


def _slot(state: DGCState, one: Round) -> torch.Tensor:
    """Room for this rank's message of a round. Where all of it is sent, nothing of before is."""
    make = torch.zeros if state._peers is None else torch.empty
    return make(state._residuals.bound(one, state.step), dtype=torch.uint8)


def _swap(state: DGCState, slot: torch.Tensor, size: int, one: Round, last: bool) -> Swap:
    """Begins a round: the first `size` bytes of `slot` to all ranks."""
    state._messages += 1
    if state._peers is not None:
        outgoing, bound = [slot[:size]] * state._workers, state._residuals.bound
        return state._peers.first.swap(outgoing, one, state.step, last, bound)
    device = wire_device(state, next(iter(state._ids)).device)
    return Gathered(state.process_group, device, slot, state._workers)


def _wait(state: DGCState, swap: Swap, wait: Any = None) -> List[torch.Tensor]:
    """Everybody's messages."""
    try:
        messages = swap.after(wait) if isinstance(swap, Gathered) and wait else swap.wait()
    except Lost as error:
        hint = "look at what ended another rank"
        _core.fail("peer_lost", "exchange", f"{error.subject}step {state.step}", str(error), hint)
    if state._peers is not None:
        forget_left(group_of(state.process_group))
    return messages


def is_nonfinite_anywhere(state: DGCState, norm: float) -> bool:
    """Has to be known before anything is accumulated: a round of its own."""
    notice = _core.Notice(0, [], nonfinite=not math.isfinite(norm))
    one = Round("notice", ())
    slot = _slot(state, one)
    swap = _swap(state, slot, state._residuals.notice_message(notice, slot), one, False)
    try:
        return state._residuals.check(_wait(state, swap), notice, []).merged.nonfinite
    finally:
        swap.done()


def skip(state: DGCState, pieces: Sequence[Piece]) -> None:
    """Gradients become Inf where a scaler is to notice, else zero."""
    state.skipped = True
    state.stats = StepStats(
        state.step, True, state.schedule.ratio_at(state.step), 0, 0, 0, 0.0, 0.0, 1.0, state._messages
    )
    state._messages = 0
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
) -> Exchange:
    """Begins an exchange. `refused`: why this rank cannot take part; it tells the others."""
    agree(state)
    parts = sorted_parts(pieces)
    present = [part.present for part in parts]
    one = Round("message", tuple(part.tensor for part in parts))
    slot = _slot(state, one)
    with state._lock:
        state.skipped = False
        number = state._exchanges
        state._exchanges += 1
        state._pending += 1
        state._last_sent = last
        try:
            if refused is not None:
                raise refused
            if state._failure is not None:
                raise state._failure
            notice = _core.Notice(number, present, parameters=_parameters_hash(state, pieces))
            size = state._residuals.compress(parts, notice, slot, 1.0 / loss_scale, norm)
        except Exception as error:  # the others wait for a message: tell them, and raise with them
            notice = _core.Notice(number, present, failure=_cause(error))
            size = state._residuals.notice_message(notice, slot)
        swap = _swap(state, slot, size, one, last)
        state._bytes[0] += size
        state._bytes[1] += slot.numel() if isinstance(swap, Gathered) else size
    if isinstance(swap, Gathered):
        state._on_wire[number] = swap.tensors
    return Exchange(pieces, parts, notice, loss_scale, swap, state._lock)


def then_finish(state: DGCState, exchange: Exchange) -> Sums:
    """The sums, when all messages have come; nobody waits for them here."""
    swap = exchange.swap
    if isinstance(swap, Gathered):
        answer: Sums = swap.work.get_future().then(
            _Callback(lambda future: _finish(state, exchange, future.wait))
        )
        return answer
    assert state._peers is not None
    sums = new_future(exchange.pieces[-1].buffer.device)

    def finish() -> None:
        try:
            result: Union[torch.Tensor, Exception] = _finish(state, exchange)
        except Exception as error:
            result = error
        sums.set_result(result)  # type: ignore[arg-type]
        swap.done()

    answer = sums.then(value_or_error)
    state._peers.submit(finish)
    return answer


def value_or_error(future: Any) -> torch.Tensor:
    """Future.set_exception is for waiters in Python: DDP would take the exception for the result."""
    result: Union[torch.Tensor, Exception] = future.value()
    if isinstance(result, Exception):
        raise result
    return result


def _finish(state: DGCState, exchange: Exchange, wait: Any = None) -> torch.Tensor:
    try:
        commit(state, exchange, _receive(state, exchange, wait))
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


def _receive(state: DGCState, exchange: Exchange, wait: Any = None) -> List[int]:
    pieces, parts = exchange.pieces, exchange.parts
    messages = _wait(state, exchange.swap, wait)
    parcels = state._residuals.check(messages, exchange.notice, parts)
    for piece in pieces:
        piece.work.zero_()
    state._residuals.add(parcels, parts, exchange.loss_scale)
    frozen = [part for part, used in zip(parts, parcels.merged.present) if not used]
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
    state._exchanges, state._last_sent, state._frozen, state._bytes = 0, False, [], [0, 0]
    state._messages = 0


def fail(state: DGCState, error: Exception, exchange: Optional[Exchange] = None) -> None:
    """The step is over: what was selected goes back, and stays accumulated."""
    life = exchange.life if exchange is not None else state._lock
    with life:
        if state._failure is None and life is state._lock:
            state._failure = error
            state._residuals.restore()
