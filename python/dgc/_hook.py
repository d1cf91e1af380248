"""dgc.hook: a bucket's way from DDP to an exchange, and back.

With clipping, or where a step may have to be skipped, buckets wait for the last and go together.
"""

import sys
from typing import Any, Sequence

import torch

from . import _check, _core
from ._exchange import (
    Piece,
    Sums,
    new_future,
    send,
    skip,
    sorted_parts,
    then_finish,
    value_or_error,
)
from ._residuals import Part
from ._rounds import agree, is_nonfinite_anywhere
from ._torch_versions import dist, is_called_for_join, is_in_join
from .state import DGCState


# DDP compares the annotation of `bucket` with the class.
def hook(state: DGCState, bucket: dist.GradBucket) -> Sums:
    """Communication hook for ``DistributedDataParallel.register_comm_hook``.

    ::

        state = dgc.DGCState(ddp, optimizer=optimizer, momentum=0.9)
        ddp.register_comm_hook(state, dgc.hook)

    After backward each gradient is the sum over all workers of what they sent, which has 1/N and
    momentum in it: an optimizer without momentum applies it. Errors of any rank are raised on all
    of them; the parameters are then as they were, what had been selected is back in the residual,
    and the state refuses further steps until :meth:`DGCState.load_state_dict`.
    """
    if not isinstance(state, DGCState):
        _check.refuse(
            "hook",
            "state",
            state,
            "a dgc.DGCState",
            "ddp.register_comm_hook(dgc.DGCState(ddp, optimizer=optimizer), dgc.hook)",
        )
    if isinstance(bucket, tuple):  # of a gradient and its parameter
        _core.fail(
            "invalid_argument",
            "hook",
            "bucket",
            "is a tuple: torch.compile has replaced DDP's reducer by one in Python",
            'set torch._dynamo.config.optimize_ddp = "ddp_optimizer", its default',
        )
    # A step that failed goes on to its last bucket: ranks that do not know yet wait for the
    # messages of those that do.
    if state._failure is not None and (
        bucket.index() == 0 or getattr(state._failure, "code", "") == "peer_lost"
    ):
        _core.fail(
            "wrong_order",
            "hook",
            f"step {state.step}",
            f"failed before: {state._failure}",
            "make a new process group, and load the last checkpoint with load_state_dict",
        )
    if bucket.index() == 0 and (state._exchanges > 0 or state._waiting):
        _core.fail(
            "wrong_order",
            "hook",
            f"step {state.step}",
            "backward ended in the middle of this step, and begins anew",
            "load the last checkpoint with load_state_dict",
        )
    if state._scaled and state.scaler is None:
        _core.fail(
            "wrong_order",
            "hook",
            "scaler",
            "this state had one before it was pickled",
            "call attach(model, scaler=scaler)",
        )
    if bucket.index() == 0:
        state._check_optimizer()
        if is_in_join(state._ddp() if state._ddp is not None else None):
            raise _join_error(state)
    # Ranks with inputs wait for this one's message, which is to tell them.
    joined = is_called_for_join(sys._getframe().f_back)
    refused = _join_error(state) if joined else None
    piece = _take(state, bucket)
    if not state.deferred:
        return then_finish(state, send(state, [piece], bucket.is_last(), 1.0, None, refused))
    state._waiting.append(piece)
    if not bucket.is_last():
        answer: Sums = piece.future.then(value_or_error)
        return answer
    pieces, state._waiting = state._waiting, []
    loss_scale = float(state.scaler.get_scale()) if state.scaler is not None else 1.0
    agree(state)
    norm = state._residuals.norm(sorted_parts(pieces))
    if state.nonfinite == "skip" and is_nonfinite_anywhere(state, norm):
        skip(state, pieces)
        return _done(pieces)
    return then_finish(state, send(state, pieces, True, loss_scale, norm, refused))


def _join_error(state: DGCState) -> Exception:
    try:
        _core.fail(
            "wrong_order",
            "hook",
            f"join(), step {state.step}",
            "dgc.hook cannot train while ranks run out of inputs one by one: the parameters of a "
            "rank without inputs would not change any more",
            "remove join(), and give all ranks the same number of batches, for example by "
            "torch.utils.data.DistributedSampler",
        )
    except _core.Error as error:
        return error


def _done(pieces: Sequence[Piece]) -> Sums:
    """For buffers that are what they are to be."""
    for piece in pieces[:-1]:
        piece.future.set_result(piece.buffer)
    answer = new_future(pieces[-1].buffer.device)
    answer.set_result(pieces[-1].buffer)
    return answer


def _take(state: DGCState, bucket: Any) -> Piece:
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        _core.fail(
            "invalid_argument",
            "hook",
            "bucket",
            f"has a gradient of layout {buffer.layout}",
            "make embeddings with sparse=False",
        )
    work = buffer if buffer.dtype == torch.float32 else buffer.float()
    parts, parameters = [], []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        tensor = state._ids.get(parameter)
        if tensor is None:
            _core.fail(
                "invalid_argument",
                "hook",
                f"a parameter of shape {list(parameter.shape)}",
                "is not in the state",
                "make DGCState of the model that DDP wraps, after requires_grad is set; "
                "after unpickling call attach(model)",
            )
        begin = gradient.storage_offset() - buffer.storage_offset()
        parts.append(
            Part(tensor, work[begin : begin + gradient.numel()], parameter.grad is not None)
        )
        parameters.append((tensor, parameter))
    future = None
    if state.deferred and not bucket.is_last():
        future = new_future(buffer.device)
    return Piece(buffer, work, parts, parameters, future)
