"""Rounds of a state with all other ranks: who they are, and messages from each to each."""

import math
from typing import Any, List

import torch

from . import _core
from ._agreement import gather_texts, wire_device
from ._peers import forget_left, open_peers
from ._torch_versions import dist, group_of, is_gloo
from ._transport import Gathered, Lost, Round, Swap
from .state import DGCState


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
            state._operation,
            "process group",
            f"this state is of rank {state._rank} of {state._workers}",
            "make a new state, and load_state_dict the list of what all ranks saved",
        )
    text = f"{state._description()}\nstep {state.step}"
    device = wire_device(state.process_group, next(iter(state._ids)).device)
    difference = _core.first_difference(gather_texts(state.process_group, device, text))
    if difference is not None:
        _core.fail(
            "configuration_mismatch",
            state._operation,
            f"rank {difference[0]}",
            difference[1],
            "start all ranks with the same model, options and checkpoint",
        )
    group = group_of(state.process_group)
    if is_gloo(group):
        state._peers = open_peers(state, group, state._rank, state._workers)
    elif has_owners(state):
        _core.fail(
            "unsupported_target",
            state._operation,
            "algorithm 'owner'",
            f"needs Gloo, and this process group is of '{dist.get_backend(group)}'",
            "use algorithm='allgather'",
        )
    state._agreed = True


def has_owners(state: DGCState) -> bool:
    return state._options.algorithm == "owner"


def slot_for(state: DGCState, one: Round) -> torch.Tensor:
    """Room for this rank's message of a round. Where all of it is sent, nothing of before is."""
    make = torch.zeros if state._peers is None else torch.empty
    return make(state._residuals.bound(one, state.step), dtype=torch.uint8)


def begin_round(
    state: DGCState, slot: torch.Tensor, outgoing: List[torch.Tensor], one: Round, last: bool
) -> Swap:
    """Begins a round: outgoing[r] to rank r, or the whole slot to all where slots are gathered."""
    others = [message.numel() for rank, message in enumerate(outgoing) if rank != state._rank]
    size = math.ceil(sum(others) / len(others)) if others else outgoing[0].numel()
    state._messages += 1
    state._bytes[0] += size
    state._bytes[1] += slot.numel() if state._peers is None else size
    if state._peers is None:
        device = wire_device(state.process_group, next(iter(state._ids)).device)
        return Gathered(state.process_group, device, slot, state._workers)
    # The second rounds of buckets begin whenever the first have come: an order of their own.
    stream = state._peers.second if one.kind == "chosen" else state._peers.first
    return stream.swap(outgoing, one, state.step, last, state._residuals.bound)


def wait_for(state: DGCState, swap: Swap, wait: Any = None) -> List[torch.Tensor]:
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
    slot = slot_for(state, one)
    size = state._residuals.notice_message(notice, slot)
    swap = begin_round(state, slot, [slot[:size]] * state._workers, one, False)
    try:
        return state._residuals.check(wait_for(state, swap), notice, []).merged.nonfinite
    finally:
        swap.done()
