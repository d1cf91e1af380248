"""ShardedState: FSDP2 within a replica of the model, Deep Gradient Compression between replicas.

FSDP2 leaves each rank the mean gradient of its shard over the ranks of its replica. At the begin of
optimizer.step() all shards are exchanged with the ranks that have the same shard in the other
replicas. The ranks of a replica then tell each other whether that went well: either all ranks apply
the step, or all raise the same error.
"""

import json
import math
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from . import _check, _core
from ._agreement import gather_texts, wire_device
from ._exchange import Piece, commit, fail, receive, send, skip
from ._parameters import Parameters, local_of
from ._residuals import Part
from ._rounds import agree, is_nonfinite_anywhere
from ._torch_versions import before_each_step, check_fsdp2, dist, dtensor_of, is_mesh
from .state import DGCState, Named

_PARTS_OF_ERRORS = ("code", "operation", "subject", "problem", "hint")


class ShardedState(DGCState):
    """Deep Gradient Compression between replicas of a model that ``fully_shard`` (FSDP2) has
    sharded: hybrid sharding. It needs PyTorch 2.6 or newer.

    ::

        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # no momentum: the state has it
        state = dgc.ShardedState(model, mesh["replicate"], optimizer=optimizer, momentum=0.9)

    The training loop does not change: ``optimizer.step()`` exchanges the gradients before it applies
    them. An optimizer exchanges for one state; a new state takes the place of an old one.

    :param parameters: the sharded model, or pairs of names and parameters.
    :param replicas: the dimension of the mesh whose ranks have the same shard, or its process group.
    :param optimizer: as for :class:`DGCState`. It has to be given.
    :param options: as for :class:`DGCState`, without ``scaler``: use bfloat16, which needs none.
        ``clip_norm`` is of the whole gradient, not of a shard.
    """

    def __init__(
        self,
        parameters: Parameters,
        replicas: Any,
        *,
        optimizer: torch.optim.Optimizer,
        **options: Any,
    ) -> None:
        check_fsdp2("ShardedState")
        self._whole: Dict[str, Any] = {}  # parameters by name
        self._handle: Any = None  # of what optimizer.step() calls
        if not isinstance(optimizer, torch.optim.Optimizer):
            _check.refuse(
                "ShardedState",
                "optimizer",
                optimizer,
                "an optimizer of PyTorch, which exchanges the gradients in its step()",
                "optimizer=torch.optim.SGD(model.parameters(), lr=0.1)",
            )
        super().__init__(parameters, _group_of(replicas), optimizer=optimizer, **options)

    def attach(
        self,
        parameters: Parameters,
        scaler: Optional[Any] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
    ) -> None:
        """When a model or an optimizer was made anew: says which parameters the names are, and the
        optimizer that is to exchange."""
        if scaler is not None:
            _core.fail(
                "invalid_argument",
                "ShardedState",
                "scaler",
                "cannot be used with sharded gradients",
                "use bfloat16, which needs none, and nonfinite='skip' to skip bad steps",
            )
        super().attach(parameters, None, optimizer)

    def _watch(self, optimizer: torch.optim.Optimizer, parameters: Set[torch.Tensor]) -> None:
        super()._watch(optimizer, parameters)
        # What was exchanged is not to be exchanged again, by this state or another.
        for handle in (self._handle, getattr(optimizer, "_dgc_exchange", None)):
            if handle is not None:
                handle.remove()
        self._handle = before_each_step(optimizer, self._before_step)
        setattr(optimizer, "_dgc_exchange", self._handle)

    def _local(self, operation: str, named: Named) -> Named:
        # A small tensor has no rows for the last ranks.
        local = [(name, local_of(operation, name, p, sharded=True)) for name, p in named]
        parameters: Dict[str, Any] = dict(named)
        self._whole = {name: parameters[name] for name, p in local if p.numel() > 0}
        meshes = {p.device_mesh for p in self._whole.values()}
        if len(meshes) != 1:
            _core.fail(
                "invalid_argument",
                operation,
                "parameters",
                f"are sharded over {len(meshes)} meshes",
                "give every fully_shard the same mesh",
            )
        self._shards = meshes.pop().get_group()
        return [(name, p) for name, p in local if p.numel() > 0]

    def _overlap(self) -> str:
        return "off: optimizer.step() exchanges"

    def __getstate__(self) -> Dict[str, Any]:
        hint = "save state.state_dict(), or give state.to_dcp() to torch.distributed.checkpoint"
        _core.fail("invalid_argument", "pickle", "ShardedState", "cannot be pickled", hint)

    # ---- a step ----------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        given = (*args, *kwargs.values())  # the optimizer itself may be the first
        if any(value is not None and value is not optimizer for value in given):
            _core.fail(
                "invalid_argument",
                "optimizer.step",
                "closure",
                "would compute gradients after they were exchanged",
                "call backward() first, and step() without a closure",
            )
        if self._failure is not None:
            _core.fail(
                "wrong_order",
                "optimizer.step",
                f"step {self.step}",
                f"failed before: {self._failure}",
                "load the last checkpoint",
            )
        try:
            with torch.no_grad():
                self._exchange()
        except _core.Error:
            raise
        except Exception as error:
            lost = self._lost(error)
            fail(self, lost)
            raise lost from error

    def _exchange(self) -> None:
        refused = _caught(self._check_optimizer)
        if not self._agreed:
            self._all_or_none(lambda: agree(self))
        piece = self._take()
        norm = None
        if self.deferred:
            norm = self._norm(self._residuals.norm(piece.parts), piece.buffer.device)
            if self.nonfinite == "skip" and is_nonfinite_anywhere(self, norm):
                skip(self, [piece])
                self._give(piece, [])
                return

        under_way: List[Any] = []

        def exchange() -> List[int]:
            under_way.append(send(self, [piece], True, 1.0, norm, refused))
            return receive(self, under_way[0])

        frozen = self._all_or_none(exchange)
        commit(self, under_way[0], frozen)
        self._give(piece, frozen)

    def _take(self) -> Piece:
        """All gradients of this rank, in one buffer."""
        local: List[Tuple[int, Any, Optional[torch.Tensor]]] = []
        for tensor, spec in enumerate(self._specs):
            parameter = self._whole[spec.name]
            gradient = parameter.grad.to_local() if parameter.grad is not None else None
            local.append((tensor, parameter.to_local(), gradient))
        elements = sum(spec.elements for spec in self._specs)
        buffer = torch.zeros(elements, device=local[0][1].device)
        parts, parameters, begin = [], [], 0
        for tensor, parameter, gradient in local:
            values = buffer[begin : begin + parameter.numel()]
            if gradient is not None:
                values.copy_(gradient.flatten())
            parts.append(Part(tensor, values, gradient is not None))
            parameters.append((tensor, parameter))
            begin += parameter.numel()
        return Piece(buffer, buffer, parts, parameters, None)

    def _give(self, piece: Piece, frozen: List[int]) -> None:
        """The sums become the gradients. A parameter that no rank used keeps none."""
        for part in piece.parts:
            parameter = self._whole[self._specs[part.tensor].name]
            if part.tensor in frozen or (self.skipped and parameter.grad is None):
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad.to_local()
            gradient.copy_(part.values.view(gradient.shape))

    # ---- the ranks of a replica ------------------------------------------------------------------

    def _norm(self, norm: float, device: torch.device) -> float:
        """Of the gradient of all shards of this replica; the same on all of its ranks."""
        mine = torch.tensor(
            [norm], dtype=torch.float64, device=wire_device(self.process_group, device)
        )
        norms = [torch.zeros_like(mine) for _ in range(dist.get_world_size(self._shards))]
        dist.all_gather(norms, mine, group=self._shards)
        return math.sqrt(sum(float(n) ** 2 for n in norms))

    def _all_or_none(self, work: Callable[[], Any]) -> Any:
        """What work() returns. If it raises on any rank of this replica, all of them raise that."""
        result: List[Any] = []
        error = _caught(lambda: result.append(work()))
        failed = torch.tensor([error is not None], dtype=torch.uint8)
        try:
            failed = failed.to(
                wire_device(self.process_group, next(iter(self._whole.values())).device)
            )
            dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=self._shards)
            if failed.item():
                error = self._first_of(error)
        except Exception as lost:
            error = error or self._lost(lost)
        if error is not None:
            fail(self, error)
            raise error
        return result[0]

    def _lost(self, error: Exception) -> Exception:
        hint = "look at what ended another rank"
        return _error_of("peer_lost", "optimizer.step", f"step {self.step}", str(error), hint)

    def _first_of(self, error: Optional[Exception]) -> Exception:
        """Of the errors of all ranks of this replica."""
        mine = None
        if error is not None:
            mine = [getattr(error, part, "") for part in _PARTS_OF_ERRORS]
            if not mine[0]:
                mine = ["internal", "optimizer.step", type(error).__name__, str(error), ""]
        device = wire_device(self.process_group, next(iter(self._whole.values())).device)
        texts = gather_texts(self._shards, device, json.dumps(mine))
        errors = [json.loads(text) for text in texts]
        # A norm that is Inf or NaN follows from what another shard says more of.
        known = sorted((e for e in errors if e is not None), key=lambda e: " norm: " in e[3])
        return _error_of(*known[0])

    # ---- saving ----------------------------------------------------------------------------------

    def _saved_shapes(self) -> Dict[str, List[int]]:
        return {}  # DTensors know theirs, and a rank may have no part of some

    def _to_saved(self, tensor: int, values: torch.Tensor) -> Any:
        """A DTensor: torch.distributed.checkpoint shares it out anew where the mesh is another."""
        spec = self._specs[tensor]
        return dtensor_of(values.view(spec.shape), self._whole[spec.name])

    def _from_saved(self, tensor: int, saved: Any) -> torch.Tensor:
        values: torch.Tensor = saved.to_local().flatten()
        return values


def _group_of(replicas: Any) -> Any:
    if not is_mesh(replicas):
        return replicas
    if replicas.ndim != 1:
        _check.refuse(
            "ShardedState",
            "replicas",
            f"a mesh of {replicas.ndim} dimensions",
            "one dimension of it",
            'mesh["replicate"]',
        )
    return replicas.get_group()


def _caught(work: Callable[[], Any]) -> Optional[Exception]:
    try:
        work()
    except Exception as error:
        return error
    return None


def _error_of(code: str, operation: str, subject: str, problem: str, hint: str) -> Exception:
    error = _caught(lambda: _core.fail(code, operation, subject, problem, hint))
    assert error is not None
    return error
