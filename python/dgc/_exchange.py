"""An exchange: some gradients of a step on their way from this rank to the sum over all ranks.

Order: compress; all-gather; add everybody's message, in the order of the ranks; commit. Where any
rank failed, its slot says so, all ranks raise the same error, and what was selected goes back.
"""

import atexit
import math
import time
import weakref
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _core, _slots
from ._residuals import Part
from ._torch_versions import dist
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
    """An all-gather that is under way."""

    pieces: Sequence[Piece]
    parts: List[Part]  # of these
    received: List[torch.Tensor]  # a slot of each rank
    number: int  # in its step
    loss_scale: float


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


def is_nonfinite_anywhere(state: DGCState, norm: float, device: torch.device) -> bool:
    flag = torch.tensor([0 if math.isfinite(norm) else 1], device=wire_device(state, device))
    most, group = dist.ReduceOp.MAX, state.process_group
    dist.all_reduce(flag, op=most, group=group)
    return bool(flag.item())


def skip(state: DGCState, pieces: Sequence[Piece]) -> None:
    """Gradients become Inf where a scaler is to notice, else zero."""
    state.skipped = True
    state.stats = StepStats(
        state.step, True, state.schedule.ratio_at(state.step), 0, 0, 0, 0.0, 0.0, 1.0
    )
    for piece in pieces:
        piece.buffer.fill_(math.inf if state.scaler is not None else 0.0)


def _parameters_hash(state: DGCState, pieces: Sequence[Piece]) -> int:
    """0 when it is not time to compare."""
    every = state.check_parameters_every
    # The first step says whether all began alike; short runs have no other comparison.
    if every == 0 or state.step == 0 or (state.step != 1 and state.step % every != 0):
        return 0
    value = 0
    for _, parameter in sorted(
        (p for piece in pieces for p in piece.parameters), key=lambda p: p[0]
    ):
        here = parameter.detach().cpu()
        here = here if here.is_contiguous() else here.contiguous()
        value = _core.hash64(here.data_ptr(), here.numel() * here.element_size(), value)
    return value


def send(
    state: DGCState,
    pieces: Sequence[Piece],
    last: bool,
    loss_scale: float,
    norm: Optional[float],
    refused: Optional[Exception] = None,
) -> Tuple[Any, Exchange]:
    """Begins an all-gather. `refused`: why this rank cannot take part; it tells the others."""
    agree(state)
    parts = sorted_parts(pieces)
    present = [part.present for part in parts]
    slot = torch.zeros(
        _slots.size_of(len(parts), state._residuals.bound([part.tensor for part in parts])),
        dtype=torch.uint8,
    )
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
            size = state._residuals.compress(
                parts, *_slots.room_of(slot, len(parts)), 1.0 / loss_scale, norm
            )
            _slots.write_header(
                slot, state._rank, state.step, number, present, _parameters_hash(state, pieces)
            )
            state._bytes[0] += size
            state._bytes[1] += slot.numel()
        except Exception as error:  # the others wait for this slot: tell them, and raise with them
            _slots.write_error(slot, len(parts), error)
            _slots.write_header(slot, state._rank, state.step, number, present, failed=True)
    sent = slot.to(wire_device(state, pieces[-1].buffer.device))
    everything = torch.empty(state._workers, sent.numel(), dtype=torch.uint8, device=sent.device)
    received = list(everything.unbind())
    # The group's thread drops its tensors after the callback: while Python holds them, too, it need
    # not come back to Python for that.
    state._on_wire[number] = (sent, received)
    work = dist.all_gather(received, sent, group=state.process_group, async_op=True)
    return work, Exchange(pieces, parts, received, number, loss_scale)


def then_finish(state: DGCState, work: Any, exchange: Exchange) -> Sums:
    """The sums, when all slots have come; nobody waits for them here."""
    answer: Sums = work.get_future().then(
        _Callback(lambda future: _finish(state, exchange, future.wait))
    )
    return answer


def _finish(state: DGCState, exchange: Exchange, wait: Any) -> torch.Tensor:
    try:
        commit(state, receive(state, exchange, wait))
    except Exception as error:
        fail(state, error)
        for piece in exchange.pieces[:-1]:
            piece.future.set_result(error)
        raise
    for piece in exchange.pieces[:-1]:
        piece.future.set_result(piece.buffer)
    return exchange.pieces[-1].buffer


def receive(state: DGCState, exchange: Exchange, wait: Any) -> List[int]:
    """Waits for all slots, and puts their sums into the buffers. Returns the tensors of which no
    rank had a gradient."""
    try:
        wait()
    except Exception as error:
        hint = "look at what ended another rank"
        _core.fail("peer_lost", "all-gather", f"step {state.step}", str(error), hint)
    return _add(state, exchange)


def _add(state: DGCState, exchange: Exchange) -> List[int]:
    pieces, parts, number = exchange.pieces, exchange.parts, exchange.number
    received = [slot.cpu() for slot in exchange.received]
    slots = [_slots.read(slot, rank, len(parts)) for rank, slot in enumerate(received)]
    for rank, slot in enumerate(slots):
        if slot.failed:
            _slots.raise_error(received[rank], rank, len(parts))
    for rank, slot in enumerate(slots):
        if (slot.step, slot.exchange) != (state.step, number):
            _core.fail(
                "configuration_mismatch",
                "exchange",
                f"rank {rank}",
                f"is at step {slot.step}, exchange {slot.exchange}, "
                f"this rank at step {state.step}, exchange {number}",
                "all ranks have to make the same calls",
            )
        if slot.parameters != slots[0].parameters:
            _core.fail(
                "diverged",
                "compare parameters",
                f"rank {rank}",
                f"has other parameters than rank 0 at step {state.step}",
                "go back to the last checkpoint; check_parameters_every=0 turns this off",
            )
    for piece in pieces:
        piece.work.zero_()
    messages = [(slot.address, slot.size) for slot in slots]
    state._residuals.add_messages(messages, parts, exchange.loss_scale)
    frozen = [part for i, part in enumerate(parts) if not any(slot.present[i] for slot in slots)]
    for part in frozen:
        part.values.zero_()
    for piece in pieces:
        if piece.work is not piece.buffer:
            piece.buffer.copy_(piece.work)
    return [part.tensor for part in frozen]


def commit(state: DGCState, frozen: Sequence[int]) -> None:
    """This exchange was delivered. With the last one, the step is."""
    with state._lock:
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
    )
    state._residuals.commit(state._frozen)
    state._exchanges, state._last_sent, state._frozen, state._bytes = 0, False, [], [0, 0]


def fail(state: DGCState, error: Exception) -> None:
    """The step is over: what was selected goes back, and stays accumulated."""
    with state._lock:
        if state._failure is None:
            state._failure = error
            state._residuals.restore()
