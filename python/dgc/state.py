"""DGCState: what a rank keeps between steps."""

import sys
import threading
import weakref
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from . import _check, _core, _paths, _saved
from ._options import AUTO, Options, Warmup
from ._parameters import Parameters, Spec, ddp_of, local_of, named_parameters_of, specs_of
from ._residuals import Residuals, Setting
from ._dcp import DcpState
from ._peers import Peers
from ._ratio_control import RatioControl, RatioDecision
from ._torch_versions import dist, is_called_by_dcp, scaler_example
from .optim import SGD, check_optimizer, innermost, momentum_problem, warn_without_optimizer

Named = List[Tuple[str, torch.Tensor]]


class StepStats(NamedTuple):
    """What the last step did, on this rank.

    After backward it is in the state::

        stats = state.stats
        print(f"step {stats.step}: {stats.padded_bytes} bytes, 1/{stats.message_ratio:.0f} of dense")
    """

    step: int  # counted from 0; a skipped step is tried again under its number
    skipped: bool
    ratio: float  # asked for by the schedule
    entries: int  # sent by this worker, dense tensors included
    message_bytes: int  # of this worker's messages
    # What each other rank received of this one: with Gloo the same, else with padding.
    padded_bytes: int
    # 4 bytes a parameter over padded_bytes: the paper's measure, of what really goes out.
    message_ratio: float
    # What a dense fp32 ring all-reduce would bring to this rank over what came; 0 when alone.
    traffic_ratio: float
    clip_factor: float  # less than 1: clipping fired
    messages: int  # to each other rank


class DGCState:
    __doc__ = f"""Deep Gradient Compression for one DistributedDataParallel model, on one rank.

    ::

        import dgc

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)  # no momentum: the state has it
        state = dgc.DGCState(ddp, optimizer=optimizer, momentum=0.9, warmup=4 * steps_per_epoch)
        ddp.register_comm_hook(state, dgc.hook)

    All ranks give the same options; the first step compares them.

    :param parameters: a module, wrapped or not, or pairs of names and parameters.
    :param process_group: that DDP uses; None for the default one.
    :param optimizer: that applies the gradients: torch.optim.SGD without momentum, or
        :class:`dgc.SGD`. It has to be given, because one with momentum of its own (SGD, Adam) would
        train wrongly: it is refused. (With ``momentum_correction="off"`` the momentum is its.) None
        leaves this to you, with a warning.
    :param scaler: a GradScaler. Gradients are unscaled before anything else; a step with Inf or NaN
        on any rank is skipped on all.
{Options.documentation()}    """

    def __init__(
        self,
        parameters: Parameters,
        process_group: Optional["dist.ProcessGroup"] = None,
        momentum: float = Options.momentum,
        nesterov: bool = Options.nesterov,
        clip_norm: Optional[float] = Options.clip_norm,
        ratio: Union[float, str] = Options.ratio,
        warmup: Optional[Warmup] = Options.warmup,
        values: str = Options.values,
        *,
        optimizer: Optional[torch.optim.Optimizer],
        scaler: Optional[Any] = None,
        schedule: Union[_core.Schedule, str, None] = Options.schedule,
        dense_values: str = Options.dense_values,
        dense: Sequence[str] = Options.dense,
        indices: str = Options.indices,
        selection: str = Options.selection,
        masking: bool = Options.masking,
        momentum_correction: str = Options.momentum_correction,
        nonfinite: Optional[str] = Options.nonfinite,
        check_parameters_every: int = Options.check_parameters_every,
        algorithm: str = Options.algorithm,
        steps: Optional[int] = Options.steps,
        link: Optional[str] = Options.link,
        threads: int = Options.threads,
        path: str = Options.path,
    ) -> None:
        options = Options.read(locals())  # before any other local name
        named = named_parameters_of("DGCState", parameters)
        self._set_up(options, named, process_group, scaler is not None)
        self._ddp = ddp_of(parameters)
        if optimizer is None:
            warn_without_optimizer()
        self.attach(named, scaler, optimizer)

    def _set_up(
        self, options: Options, named: Named, process_group: Optional[Any], scaled: bool = False
    ) -> None:
        """Everything but what attach() does."""
        self._options = options
        local = self._local(options.owner, named)
        self._specs: List[Spec] = specs_of(local, self._options.dense)
        self.schedule = self._options.make_schedule()
        self._control = self._make_control()
        self._scaled = scaled
        self._rank, self._workers = _place_in(process_group)
        devices = [p.device for _, p in local]
        self._make_residuals(self._choose_path(devices), devices)
        self._begin()
        self.process_group, self.scaler = process_group, None
        self._optimizer: "Optional[weakref.ref[torch.optim.Optimizer]]" = None
        self._ids: Dict[torch.Tensor, int] = {}

    _lock = threading.Lock()  # until there is one of its own
    _operation = "hook"  # named by errors
    _ddp: "Optional[weakref.ref[torch.nn.Module]]" = None

    def __repr__(self) -> str:
        changed = "".join(f", {name}={value!r}" for name, value in self._options.changed().items())
        return (
            f"DGCState(<{len(self._specs)} tensors>, <rank {self._rank} of {self._workers}, "
            f"step {self.step}>{changed})"
        )

    def _choose_path(self, devices: Sequence[torch.device]) -> str:
        largest = max((spec.elements for spec in self._specs), default=0)
        return _paths.choose(self._options, devices, largest)

    def _make_residuals(self, path: str, devices: Sequence[torch.device]) -> None:
        # Messages carry a hash of what has to be the same on all ranks.
        schema = zlib.crc32(self._description().encode())
        setting = Setting(
            self._specs, self._rank, self._workers, self.schedule, self._options, schema
        )
        if self._options.algorithm == "owner" and path != "core":
            _core.fail(
                "invalid_argument",
                self._options.owner,
                "algorithm 'owner'",
                f"needs all parameters on the CPU, and not path='{path}'",
                "use algorithm='allgather'",
            )
        self._path = path
        self._residuals: Residuals = _paths.make(path, setting, devices)

    def _make_control(self) -> Optional[RatioControl]:
        options = self._options
        if options.ratio != AUTO:
            return None
        return RatioControl(options.least_ratio, options.steps, options.link)

    def _follow(self, decisions: Sequence[RatioDecision]) -> None:
        """Sends at least what was decided."""
        schedule = self._options.make_schedule()
        for one in decisions:
            schedule = schedule.raised(one.from_step, one.ratio)
        self.schedule = schedule
        self._residuals.change_schedule(schedule)

    def _begin(self) -> None:
        """What is known of the step under way, and of the ranks: nothing."""
        # Callbacks of several buckets may run at once. A new lock is a new life of the state:
        # exchanges of the one before change nothing any more.
        self._lock = threading.Lock()
        self._agreed = False  # the ranks have compared their options
        self._failure: Optional[Exception] = None
        self._waiting: List[Any] = []  # buckets, until the last has come
        self._exchanges = 0  # begun in this step
        self._pending = 0  # of these
        self._last_sent = False
        self._frozen: List[int] = []
        self._bytes = [0, 0]
        self._messages = 0  # to each other rank
        self._peers: Optional[Peers] = None
        self._on_wire: Dict[int, Any] = {}  # tensors of the last all-gather of each number
        self.stats: Optional[StepStats] = None
        self.skipped = False

    def _local(self, operation: str, named: Named) -> Named:
        """What this rank has of the parameters."""
        return [(name, local_of(operation, name, p, sharded=False)) for name, p in named]

    # ---- what users ask --------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps done so far; the schedule's position."""
        return self._residuals.step

    @property
    def decisions(self) -> List[RatioDecision]:
        """With ratio "auto": from which step on how much is sent, at the least, and the seconds of
        computing that it was decided by."""
        return list(self._control.decisions) if self._control is not None else []

    @property
    def nonfinite(self) -> str:
        """What happens with Inf or NaN in a gradient: "error" or "skip"."""
        return self._options.nonfinite or ("skip" if self._scaled else "error")

    @property
    def check_parameters_every(self) -> int:
        return self._options.check_parameters_every

    @property
    def deferred(self) -> bool:
        """Everything is exchanged after the last bucket: for clipping, with a scaler, and where a
        step may have to be skipped."""
        return self._options.clip_norm > 0.0 or self.nonfinite == "skip" or self._scaled

    def report(self) -> str:
        """How each tensor travels, and why, for people."""
        ratio = self.schedule.ratio_at(self.step)
        rows = [("tensor", "shape", "sent", "entries", "why")]
        for s in self._specs:
            k = s.elements if s.dense else _core.entries_at(ratio, s.elements)
            why = (
                f"ratio {ratio:g}"
                if not s.dense
                else "fewer than two dimensions" if len(s.shape) < 2 else "asked for"
            )
            rows.append(
                (
                    s.name,
                    "x".join(map(str, s.shape)) or "scalar",
                    "dense" if s.dense else "sparse",
                    f"{k:,}",
                    why,
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[4]]) for row in rows
        ]
        return "\n".join(
            [
                *lines,
                f"overlap with backward: {self._overlap()}; path: {self._path}; "
                f"algorithm: {self._options.algorithm}",
                self.schedule.describe().rstrip(),
            ]
        )

    def _overlap(self) -> str:
        if not self.deferred:
            return "on"
        if self._options.clip_norm > 0.0:
            return "off: clipping"
        return "off: a scaler" if self._scaled else "off: steps may be skipped"

    # ---- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """u, v and the step of this rank, as copies on the CPU: every rank saves its own. Values
        are in the order of the parameter's memory. Not between backward's first bucket and its end.
        """
        if is_called_by_dcp(sys._getframe().f_back):
            _core.fail(
                "wrong_order",
                "torch.distributed.checkpoint",
                type(self).__name__,
                "every rank has other values, of which it would keep one rank's",
                "give state.to_dcp() to dcp.save, and state.from_dcp(folder) to dcp.load",
            )
        return self._to_save()

    def _to_save(self) -> _saved.Saved:
        saved = _saved.make(self._residuals, self._rank, self._workers, self._options.plain())
        if self._control is not None:
            saved[_saved.DECISIONS] = [list(one) for one in self._control.decisions]
        return saved

    def _take_decisions(self, saved: _saved.Saved) -> None:
        """A run that goes on has sent what it has sent, whatever would be free today."""
        if self._control is None:
            return
        self._control.restored([RatioDecision(*one) for one in saved.get(_saved.DECISIONS, [])])
        self._follow(self._control.decisions)

    def load_state_dict(self, saved: _saved.AnySaved) -> None:
        """What this rank saved. To go on with another number of workers: the list of what all ranks
        saved; old rank i goes to rank i mod N, so that the sums of u and of v over all workers stay
        what they were. On an Error nothing has changed."""
        with self._lock:  # not while an exchange ends that was under way
            _saved.load(self._residuals, saved, self._rank, self._workers)
            self._take_decisions(saved if isinstance(saved, dict) else saved[0])
            self._begin()

    def to_dcp(self) -> "DcpState":
        """For ``torch.distributed.checkpoint``: goes beside model and optimizer.

        ::

            import torch.distributed.checkpoint as dcp

            parts = {"model": model.state_dict(), "dgc": state.to_dcp()}
            dcp.save(parts, checkpoint_id="checkpoint")
        """
        return DcpState(self)

    def from_dcp(self, checkpoint: Any) -> "DcpState":
        """For ``torch.distributed.checkpoint``: loads what :meth:`to_dcp` saved, also with another
        number of workers. The sums of u and of v over all workers stay what they were.

        ::

            parts = {"model": model.state_dict(), "dgc": state.from_dcp("checkpoint")}
            dcp.load(parts, checkpoint_id="checkpoint")

        :param checkpoint: the folder, or a StorageReader of another place.
        """
        return DcpState(self, checkpoint)

    def _saved_shapes(self) -> Dict[str, List[int]]:
        """By name, in a distributed checkpoint."""
        return {spec.name: list(spec.shape) for spec in self._specs}

    def _to_saved(self, tensor: int, values: torch.Tensor) -> Any:
        """u or v of a tensor as it is in a distributed checkpoint, and back."""
        return values

    def _from_saved(self, tensor: int, saved: Any) -> torch.Tensor:
        values: torch.Tensor = saved
        return values

    def __getstate__(self) -> Dict[str, Any]:
        """Neither the process group nor the parameters nor the scaler nor the optimizer: after
        unpickling, :meth:`attach` them."""
        return {"specs": self._specs, "scaled": self._scaled, "saved": self.state_dict()}

    def __setstate__(self, pickled: Dict[str, Any]) -> None:
        saved = pickled["saved"]
        if "options" not in saved:
            _core.fail(
                "bad_version",
                "unpickle",
                "DGCState",
                "was pickled by an older version",
                "use that version, or give its state_dict() to load_state_dict",
            )
        self._options = Options.read(saved["options"])
        self.schedule = self._options.make_schedule()
        self._control = self._make_control()
        self._specs, self._scaled = pickled["specs"], pickled["scaled"]
        self._rank, self._workers = saved["rank"], saved["workers"]
        self.process_group = self.scaler = None
        self._optimizer, self._ids, self._ddp = None, {}, None
        self._make_residuals("core", [])
        self.load_state_dict(saved)

    def attach(
        self,
        parameters: Parameters,
        scaler: Optional[Any] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
    ) -> None:
        """After unpickling, or when a model was made anew: says which parameters the names are, and
        the GradScaler and the optimizer where there are new ones."""
        self._ddp = ddp_of(parameters) or self._ddp
        named = named_parameters_of("attach", parameters)
        local = self._local("attach", named)
        self._check_names({name: list(p.shape) for name, p in local})
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            _check.refuse(
                "DGCState",
                "scaler",
                scaler,
                "a GradScaler, with get_scale()",
                f"scaler={scaler_example()}",
            )
        if optimizer is not None:
            self._watch(innermost(optimizer), {p for _, p in named})
        by_name = {spec.name: t for t, spec in enumerate(self._specs)}
        if self._path == "core" and any(p.device.type != "cpu" for _, p in local):
            saved = self.state_dict()
            placed = sorted((by_name[name], p.device) for name, p in local)
            devices = [device for _, device in placed]
            self._make_residuals(self._choose_path(devices), devices)
            self.load_state_dict(saved)
        self._ids = {p: by_name[name] for name, p in named if name in by_name}
        if scaler is not None:
            self.scaler, self._scaled = scaler, True

    def _check_names(self, found: Dict[str, List[int]]) -> None:
        for spec in self._specs:
            if found.pop(spec.name, None) != spec.shape:
                _core.fail(
                    "state_mismatch",
                    "attach",
                    f"'{spec.name}'",
                    f"is not among the parameters, or not of shape {spec.shape}",
                    "attach the model that the state was made of, or a copy",
                )
        if found:
            _core.fail(
                "state_mismatch",
                "attach",
                f"'{next(iter(found))}'",
                "is not in this state",
                "attach the model that the state was made of, or a copy",
            )

    def _watch(self, optimizer: torch.optim.Optimizer, parameters: "set[torch.Tensor]") -> None:
        check_optimizer(optimizer, parameters, self._options)
        self._optimizer = weakref.ref(optimizer)
        if isinstance(optimizer, SGD):
            optimizer.dgc_state = self

    def _check_optimizer(self) -> None:
        """Schedulers may change an optimizer's momentum while training goes on."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        if optimizer is None:
            return
        problem = momentum_problem(optimizer, self._options)
        if problem:
            _core.fail(
                "wrong_order",
                "hook",
                f"optimizer, step {self.step}",
                problem,
                "with OneCycleLR and CyclicLR give cycle_momentum=False",
            )

    def _description(self) -> str:
        """What has to be the same on all ranks, a line each."""
        lines = [
            f"dgc {_core.__version__}",
            f"workers {self._workers}",
            f"scaler {self._scaled}",
            f"nonfinite {self.nonfinite}",
            *self._options.lines(),
        ]
        lines += self.schedule.describe().splitlines()
        for s in self._specs:
            lines.append(f"parameter '{s.name}' {s.shape} {'dense' if s.dense else 'sparse'}")
        return "\n".join(lines)


def _place_in(process_group: Any) -> Tuple[int, int]:
    """Rank and number of workers."""
    if not dist.is_available() or not dist.is_initialized():
        _core.fail(
            "wrong_order",
            "DGCState",
            "torch.distributed",
            "has no process group yet",
            "call torch.distributed.init_process_group first",
        )
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        _core.fail(
            "invalid_argument",
            "DGCState",
            "process_group",
            "does not have this rank in it",
            "make the state on the ranks of the group only",
        )
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        _check.refuse(
            "DGCState",
            "process_group",
            process_group,
            "a process group, or None",
            "process_group=torch.distributed.new_group([0, 1])",
        )
    rank: int = dist.get_rank(process_group)
    workers: int = dist.get_world_size(process_group)
    return rank, workers
