"""LocalSteps: any optimizer inside, Deep Gradient Compression outside.

Every rank trains by itself for some steps. Then all ranks exchange, compressed, what their parameters
have changed by. The way of a round is that of a step of the hook (_exchange.py); what is exchanged is
the change in place of a gradient.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import torch

from . import _check, _core, _saved
from ._agreement import gather_texts, wire_device
from ._exchange import Piece, Target, commit, fail, receive, send
from ._options import LocalOptions, Options, Warmup
from ._parameters import Parameters, ddp_of, named_parameters_of
from ._residuals import Part
from ._rounds import agree
from ._torch_versions import dist, global_rank
from .state import DGCState, Named, StepStats

_OWNER = LocalOptions.owner
_LOAD = "load_state_dict"
_VERSION = 1

# What LocalSteps.state_dict returns, of one rank or of all.
_Saved = Dict[str, Any]


class _Rounds(DGCState):
    """The residuals of a rank, and what it knows of the others. Its steps are rounds."""

    _operation = _OWNER

    def __init__(self, options: LocalOptions, named: Named, process_group: Any) -> None:
        self._set_up(options, named, process_group)
        self.attach(named)


class _Place(NamedTuple):
    """A parameter that is trained."""

    name: str
    parameter: torch.Tensor
    theta0: torch.Tensor  # fp32, one dimension: what all ranks had after the last round
    momentum: Optional[torch.Tensor]


class LocalSteps:
    __doc__ = f"""Local steps of any optimizer, and compressed rounds: for AdamW, and for slow networks.

    ::

        model = torch.nn.Linear(20, 5)  # not wrapped in DDP
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        local = dgc.LocalSteps(model, optimizer, local_steps=30)
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            if local.step():  # optimizer.step(); after each 30th also a round
                print(f"round {{local.rounds}}: {{local.stats.message_bytes}} bytes")

    A round: the change of a rank's parameters goes into its residual, after that has decayed; the
    largest entries are sent; the mean of what all ranks sent is applied to what all had after the
    round before. At ratio 1, without decay and with outer_lr 1 that is plain averaging of the
    parameters. **Between rounds the parameters differ from rank to rank**: evaluate and save them
    right after a round, when :meth:`step` has returned True, or after :meth:`synchronize`.

    The optimizer's state stays on its rank. Its learning rate is inside the change, and so inside
    what waits in the residual; with the hook, what waits is applied at the rate of today.

    If a round fails, the parameters of all ranks become what they were after the round before; the
    change of its steps stays in the residual, as far as it could be compressed, and further steps are
    refused until :meth:`load_state_dict`.

    All ranks give the same options, and have the same parameters from the start: those of rank 0.

    :param parameters: a module, or pairs of names and parameters. Those that the optimizer does not
        have, or that do not require gradients, are left alone.
    :param optimizer: any of PyTorch.
    :param process_group: None for the default one.
{LocalOptions.documentation()}    """

    def __init__(
        self,
        parameters: Parameters,
        optimizer: torch.optim.Optimizer,
        process_group: Optional["dist.ProcessGroup"] = None,
        *,
        local_steps: int = LocalOptions.local_steps,
        outer_lr: float = LocalOptions.outer_lr,
        outer_momentum: float = LocalOptions.outer_momentum,
        residual_decay: float = LocalOptions.residual_decay,
        mean: str = LocalOptions.mean,
        ratio: float = LocalOptions.ratio,
        warmup: Optional[Warmup] = Options.warmup,
        schedule: Union[_core.Schedule, str, None] = Options.schedule,
        values: str = LocalOptions.values,
        dense_values: str = LocalOptions.dense_values,
        dense: Sequence[str] = Options.dense,
        indices: str = Options.indices,
        selection: str = Options.selection,
        check_parameters_every: int = Options.check_parameters_every,
        algorithm: str = Options.algorithm,
        threads: int = Options.threads,
        path: str = Options.path,
    ) -> None:
        options = LocalOptions.read(locals())  # before any other local name
        _check_options(options)
        if not isinstance(optimizer, torch.optim.Optimizer):
            _check.refuse(
                _OWNER,
                "optimizer",
                optimizer,
                "an optimizer of PyTorch",
                "optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4)",
            )
        if ddp_of(parameters) is not None:
            _core.fail(
                "invalid_argument",
                _OWNER,
                "parameters",
                "are of DistributedDataParallel, which averages the gradients of every step",
                "give the module itself, and train with that",
            )
        named = _trained(named_parameters_of(_OWNER, parameters), optimizer)
        self.optimizer = optimizer
        self._options = options
        self._outer_lr: float = options.outer_lr
        self._local_step = 0
        self._rounds = _Rounds(options, named, process_group)
        self._module = parameters if isinstance(parameters, torch.nn.Module) else None
        self._places = [
            _Place(
                name,
                p,
                torch.empty(p.numel(), device=p.device),
                torch.zeros(p.numel(), device=p.device) if options.outer_momentum > 0.0 else None,
            )
            for name, p in named
        ]
        self.broadcast_parameters()

    def __repr__(self) -> str:
        return (
            f"LocalSteps(<{len(self._places)} tensors>, <round {self.rounds}>, "
            f"local_steps={self._options.local_steps})"
        )

    # ---- training --------------------------------------------------------------------------------

    def step(self, closure: Optional[Callable[[], Any]] = None) -> bool:
        """``optimizer.step(closure)``, and after each ``local_steps``-th call a round. True when there
        was one."""
        self._check_alive()
        self.optimizer.step(closure)
        return self.stepped()

    def stepped(self) -> bool:
        """The same where something else has called ``optimizer.step()``: a GradScaler, a trainer."""
        self._check_alive()
        self._local_step += 1
        if self._local_step < self._options.local_steps:
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """A round now, after however many local steps, none included: before evaluation, at the end of
        data or of training. All ranks call it, or are at their last local step."""
        self._check_alive()
        with torch.no_grad():
            self._round()

    def _round(self) -> None:
        state, exchange = self._rounds, None
        agree(state)  # before anything is touched
        pieces = []
        try:
            for tensor, place in enumerate(self._places):
                values = _change_of(place)
                part = Part(tensor, values, True)
                pieces.append(Piece(values, values, [part], [(tensor, place.theta0)], None))
            target = None
            if self._options.outer_momentum == 0.0:
                theta0 = [Part(t, place.theta0, True) for t, place in enumerate(self._places)]
                target = Target(theta0, -self._outer_lr)
            exchange = send(state, pieces, True, 1.0, None, target=target)
            commit(state, exchange, receive(state, exchange))
            if target is None:
                for piece, place in zip(pieces, self._places):
                    self._apply_momentum(place, piece.work)
        except Exception as error:
            fail(state, error, exchange)
            raise
        finally:
            self._local_step = 0
            for place in self._places:
                _publish(place)

    def _apply_momentum(self, place: _Place, mean: torch.Tensor) -> None:
        """Nesterov, as torch.optim.SGD has it. In the order of operations of C++."""
        assert place.momentum is not None
        m = self._options.outer_momentum
        place.momentum.mul_(m).add_(mean)
        place.theta0.sub_((mean + place.momentum * m) * self._outer_lr)

    def _check_alive(self) -> None:
        if self._rounds._failure is None:
            return
        _core.fail(
            "wrong_order",
            _OWNER,
            f"round {self.rounds}",
            f"failed before: {self._rounds._failure}",
            "make a new process group, and load the last checkpoint with load_state_dict",
        )

    def _check_between_rounds(self, operation: str) -> None:
        if self._local_step == 0:
            return
        _core.fail(
            "wrong_order",
            operation,
            _OWNER,
            f"{self._local_step} local steps were made since the last round",
            "call it where step() has returned True, or call synchronize() first",
        )

    # ---- what users ask and set ------------------------------------------------------------------

    @property
    def local_step(self) -> int:
        """Local steps since the last round."""
        return self._local_step

    @property
    def rounds(self) -> int:
        """Rounds done so far."""
        return self._rounds.step

    @property
    def outer_lr(self) -> float:
        """What the mean change is multiplied by. May be set, on all ranks alike."""
        return self._outer_lr

    @outer_lr.setter
    def outer_lr(self, rate: float) -> None:
        self._outer_lr = _check.check(_OWNER, "outer_lr", rate, _check.within(0.0), "outer_lr=0.7")

    @property
    def stats(self) -> Optional[StepStats]:
        """Of the last round; its step is the number of the round."""
        return self._rounds.stats

    def report(self) -> str:
        """How each tensor travels, and why, for people."""
        return self._rounds.report()

    def residual(self, name: str) -> torch.Tensor:
        """What of a parameter's changes has not been sent yet, on this rank. A copy."""
        names = [place.name for place in self._places]
        if name not in names:
            _check.refuse(_OWNER, "name", name, f"one of {', '.join(names)}", repr(names[0]))
        tensor = names.index(name)
        values = self._rounds._residuals.part("residual", tensor)
        assert values is not None
        return values.clone().view(self._places[tensor].parameter.shape)

    def broadcast_parameters(self) -> None:
        """Makes all ranks' parameters those of rank 0, for when they were changed by hand; buffers,
        too, where a module was given. All ranks call it, and not between rounds."""
        self._check_between_rounds("broadcast_parameters")
        with torch.no_grad():
            for place in self._places:
                place.theta0.copy_(place.parameter.detach().flatten())
                self._broadcast(place.theta0)
                _publish(place)
            for buffer in self._others():
                self._broadcast(buffer)

    def sync_buffers(self) -> None:
        """Averages floating-point buffers of the module over all ranks; others become rank 0's.
        Rounds do not do it. All ranks call it."""
        group = self._rounds.process_group
        with torch.no_grad():
            for buffer in self._module.buffers() if self._module is not None else ():
                if not buffer.is_floating_point():
                    self._broadcast(buffer)
                    continue
                device = wire_device(self._rounds.process_group, buffer.device)
                mean = buffer.detach().float().contiguous().to(device, copy=True)
                dist.all_reduce(mean, group=group)
                buffer.copy_(mean / self._rounds._workers)

    def check_parameters(self) -> None:
        """Compares the parameters of all ranks now. All ranks call it, and not between rounds."""
        self._check_between_rounds("check_parameters")
        value = 0
        for place in self._places:
            here = place.theta0.cpu()
            value = _core.hash64(here.data_ptr(), 4 * here.numel(), value)
        device = wire_device(self._rounds.process_group, self._places[0].theta0.device)
        texts = gather_texts(self._rounds.process_group, device, f"{value:016x}")
        different = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
        if different is not None:
            _core.fail(
                "diverged",
                "check_parameters",
                f"rank {different}",
                f"has other parameters than rank 0 after round {self.rounds}",
                "go back to the last checkpoint",
            )

    def _others(self) -> List[torch.Tensor]:
        """Of the module, what is not trained here."""
        if self._module is None:
            return []
        trained = {place.parameter for place in self._places}
        rest = [p.detach() for p in self._module.parameters() if p not in trained]
        return rest + list(self._module.buffers())

    def _broadcast(self, tensor: torch.Tensor) -> None:
        group = self._rounds.process_group
        root = global_rank(group, 0)
        device = wire_device(self._rounds.process_group, tensor.device)
        copy = tensor.detach().contiguous().to(device, copy=True)
        dist.broadcast(copy, root, group=group)
        tensor.copy_(copy)

    # ---- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> _Saved:
        """Everything of this rank: parameters, residual, outer momentum and rate, and the state of its
        optimizer. Every rank saves its own. Not between rounds.

        ::

            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
            local = dgc.LocalSteps(model, optimizer, local_steps=2)
            torch.save(local.state_dict(), f"rank-{rank}.pt")
            local.load_state_dict(torch.load(f"rank-{rank}.pt"))
        """
        self._check_between_rounds("state_dict")
        momenta = {p.name: p.momentum.cpu().clone() for p in self._places if p.momentum is not None}
        return {
            "version": _VERSION,
            "rounds": self._rounds.state_dict(),
            "parameters": {p.name: p.theta0.cpu().clone() for p in self._places},
            "outer_momentum": momenta,
            "outer_lr": self._outer_lr,
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, saved: Union[_Saved, Sequence[_Saved]]) -> None:
        """What this rank saved: training goes on bit for bit as it would have. To go on with another
        number of ranks: the list of what all ranks saved, in their order. The sum of the residuals
        stays what it was; rank i takes the optimizer of old rank i modulo their number. Local steps
        since the last round are forgotten. On an Error nothing has changed."""
        everything: List[Any] = list(saved) if isinstance(saved, (list, tuple)) else [saved]
        for one in everything or [None]:
            self._check_saved(one)
        mine = everything[self._rounds._rank % len(everything)]
        before = self.optimizer.state_dict()
        try:
            self.optimizer.load_state_dict(mine["optimizer"])
            rounds = [one["rounds"] for one in everything]
            self._rounds.load_state_dict(rounds[0] if isinstance(saved, dict) else rounds)
        except Exception:
            self.optimizer.load_state_dict(before)
            raise
        self._outer_lr, self._local_step = float(mine["outer_lr"]), 0
        with torch.no_grad():
            for place in self._places:
                place.theta0.copy_(mine["parameters"][place.name])
                if place.momentum is not None:
                    place.momentum.copy_(mine["outer_momentum"][place.name])
                _publish(place)

    def _check_saved(self, saved: Any) -> None:
        keys = ("version", "rounds", "parameters", "outer_momentum", "outer_lr", "optimizer")
        if not isinstance(saved, dict) or any(key not in saved for key in keys):
            _check.refuse(
                _LOAD,
                "saved",
                saved,
                "what LocalSteps.state_dict() returned, or the list of what it returned on all ranks",
                "torch.load('rank-0.pt')",
            )
        if saved["version"] != _VERSION:
            _core.fail(
                "bad_version",
                _LOAD,
                "version",
                f"{_check.shown(saved['version'])} is not one that this package reads",
                f"use the version of dgc that wrote it; this one reads version {_VERSION}",
            )
        kinds = {"parameters": True, "outer_momentum": self._options.outer_momentum > 0.0}
        for key, wanted in kinds.items():
            here = {p.name: p.theta0.numel() for p in self._places} if wanted else {}
            there = {name: values.numel() for name, values in saved[key].items()}
            if here != there:
                _saved.refuse_shapes(_LOAD, there, here)


def _check_options(options: LocalOptions) -> None:
    last = options.make_schedule()
    whole = last.ratio_at(0) == 1.0 and last.ratio_at(last.warmup_steps) == 1.0
    if options.outer_momentum > 0.0 and not whole:
        _core.fail(
            "invalid_argument",
            _OWNER,
            f"outer_momentum {options.outer_momentum:g}",
            "needs rounds that send everything",
            "give ratio=1.0, or leave it 0: residual_decay is in its place",
        )
    if options.over_senders and options.algorithm != "allgather":
        _core.fail(
            "invalid_argument",
            _OWNER,
            "mean 'senders'",
            f"cannot be taken with algorithm '{options.algorithm}', where nobody knows who sent what",
            "use algorithm='allgather', or mean='workers'",
        )


def _trained(named: Named, optimizer: torch.optim.Optimizer) -> Named:
    """Those that the optimizer has. It has to have no others that are trained."""
    known = {p for _, p in named}
    inside = set()
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            inside.add(parameter)
            if parameter.requires_grad and parameter not in known:
                _core.fail(
                    "invalid_argument",
                    _OWNER,
                    f"parameter {i} of group {g} of the optimizer",
                    "is not one of the parameters given",
                    "make the optimizer of this model's parameters",
                )
    trained = [(name, p) for name, p in named if p in inside]
    if not trained:
        _core.fail(
            "invalid_argument",
            _OWNER,
            "optimizer",
            "has none of these parameters",
            "make the optimizer of this model's parameters",
        )
    return trained


def _is_direct(parameter: torch.Tensor) -> bool:
    return parameter.dtype == torch.float32 and parameter.is_contiguous()


def _change_of(place: _Place) -> torch.Tensor:
    """theta0 - theta, in the place of theta where that is possible: nobody needs that until theta0 is
    known again."""
    parameter, theta0 = place.parameter.detach(), place.theta0
    if parameter.numel() != theta0.numel():
        _core.fail(
            "wrong_order",
            _OWNER,
            f"parameter '{place.name}'",
            "has another size than when this object was made",
            "make a new one",
        )
    if _is_direct(parameter):
        values = parameter.view(-1)
        return torch.sub(theta0, values, out=values)
    # The optimizer began at theta0 as the parameter's type rounds it.
    return theta0.to(parameter.dtype).float() - parameter.float().flatten()


def _publish(place: _Place) -> None:
    """theta = theta0."""
    parameter = place.parameter.detach()
    if parameter.numel() == place.theta0.numel():  # else it is not what it was, and refused
        parameter.copy_(place.theta0.view(parameter.shape))
