"""The user's model as a hub's run has it: parameters and buffers in fp32, and the memory of the
replica as tensors."""

import ctypes
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from . import _check, _core
from ._hub_address import OPERATION
from ._parameters import ddp_of, local_of, named_parameters_of, specs_of

Named = List[Tuple[str, torch.Tensor]]
_Spec = Tuple[str, List[int], bool]


class Arrays(NamedTuple):
    """As _core takes them, and what keeps their memory alive."""

    places: List[Tuple[int, int, int]]
    memory: List[torch.Tensor]


def _memory(address: int, elements: int) -> torch.Tensor:
    if elements == 0:
        return torch.empty(0)
    room = (ctypes.c_float * elements).from_address(address)
    return torch.frombuffer(room, dtype=torch.float32)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its values in fp32 on the CPU; its own memory where they are that already."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.to("cpu", torch.float32).contiguous().view(-1)


class HubModel:
    """Parameters that are trained, and buffers that all members average."""

    def __init__(self, model: torch.nn.Module, buffers: Union[bool, Sequence[str]]) -> None:
        if not isinstance(model, torch.nn.Module):
            _check.refuse(OPERATION, "model", model, "a module of PyTorch", "model=model")
        if ddp_of(model) is not None:
            problem = "is wrapped in DistributedDataParallel, which averages gradients by itself"
            hint = "give the module itself; each process can be a member of its own"
            _core.fail("invalid_argument", OPERATION, "model", problem, hint)
        self.module = model
        self._average: Optional[torch.Tensor] = None  # of the buffers, that was taken last
        named = named_parameters_of(OPERATION, model)
        for name, parameter in named:
            local_of(OPERATION, name, parameter, sharded=False)
        self.parameters = named
        self.buffers = _buffers_of(model, buffers)
        for kind, tensors in (("parameter", self.parameters), ("buffer", self.buffers)):
            for name, tensor in tensors:
                if not torch.isfinite(tensor).all():
                    hint = "members have finite values; buffers=False leaves buffers out"
                    problem = "has a value that is NaN or infinite"
                    _core.fail("invalid_argument", OPERATION, f"{kind} '{name}'", problem, hint)

    def specs(self) -> Tuple[List[_Spec], List[_Spec]]:
        """Of parameters and buffers."""
        return tuple(  # type: ignore[return-value]
            [(s.name, s.shape, s.dense) for s in specs_of(named, ())]
            for named in (self.parameters, self.buffers)
        )

    # ---- to and from the replica -----------------------------------------------------------------

    def give_to(self, core: _core.HubMember) -> None:
        """Where nobody has trained yet, these are the run's first parameters."""
        for (address, elements), (_, parameter) in zip(core.parameters(), self.parameters):
            _memory(address, elements).copy_(_flat(parameter))
        address, elements = core.buffers()
        _memory(address, elements).copy_(self.flat_buffers())

    def take(self, core: _core.HubMember, with_buffers: bool = False) -> None:
        """Parameters, and buffers where members have averaged them: between two averages, each member
        trains on with its own."""
        with torch.no_grad():
            for (address, elements), (_, parameter) in zip(core.parameters(), self.parameters):
                parameter.copy_(_memory(address, elements).view(parameter.shape))
            buffers = _memory(*core.buffers())
            known = self._average is not None and torch.equal(buffers, self._average)
            if known and not with_buffers:
                return
            self._average, at = buffers.clone(), 0
            for _, buffer in self.buffers:
                buffer.copy_(buffers[at : at + buffer.numel()].view(buffer.shape))
                at += buffer.numel()

    def flat_buffers(self) -> torch.Tensor:
        if not self.buffers:
            return torch.empty(0)
        return torch.cat([_flat(buffer) for _, buffer in self.buffers])

    # ---- what a member contributes ---------------------------------------------------------------

    def forget_gradients(self) -> None:
        for _, parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> Arrays:
        arrays = Arrays([], [])
        for tensor, (_, parameter) in enumerate(self.parameters):
            if parameter.grad is not None:
                _add(arrays, tensor, _flat(parameter.grad))
        if not arrays.places:
            hint = "call loss.backward() before member.contribute(loss)"
            _core.fail("wrong_order", "contribute", "gradients", "there are none", hint)
        return arrays

    def changes(self, core: _core.HubMember) -> Arrays:
        """Of the parameters since they were those of the replica: begin - end."""
        arrays = Arrays([], [])
        places = zip(core.parameters(), self.parameters)
        for tensor, ((address, elements), (_, parameter)) in enumerate(places):
            _add(arrays, tensor, _memory(address, elements) - _flat(parameter))
        return arrays


def _add(arrays: Arrays, tensor: int, values: torch.Tensor) -> None:
    arrays.places.append((tensor, values.data_ptr(), values.numel()))
    arrays.memory.append(values)


def _buffers_of(model: torch.nn.Module, wanted: Union[bool, Sequence[str]]) -> Named:
    """Those with fractions that are saved with the model: counters, and masks that are made anew, are
    each member's own."""
    saved = set(model.state_dict())
    found = [
        (name, buffer)
        for name, buffer in model.named_buffers()
        if name in saved and buffer.is_floating_point()
    ]
    if isinstance(wanted, bool):
        return found if wanted else []
    kind = _check.Kind("True, False, or a list of names", _check.NAMES.read)
    names: Optional[List[str]] = _check.check(
        OPERATION, "buffers", wanted, kind, "buffers=['norm.running_mean']"
    )
    unknown = sorted(set(names or ()) - {name for name, _ in found})
    if unknown:
        problem = "is no buffer of fractions that is saved with the model"
        hint = f"those are {', '.join(name for name, _ in found) or 'none'}"
        _core.fail("invalid_argument", OPERATION, f"buffers: '{unknown[0]}'", problem, hint)
    return [(name, buffer) for name, buffer in found if name in (names or ())]
