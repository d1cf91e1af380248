"""DGCState: what a rank keeps between steps."""

import threading
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import torch
import torch.distributed as dist

from . import _core
from ._options import NamedParameters, Warmup, check_optimizer, named_parameters_of, schedule_of, specs_of
from ._residuals import CoreResiduals, Options, Spec
from ._torch_residuals import TorchResiduals
from .optim import SGD


class StepStats(NamedTuple):
    """What the last step did, on this rank."""

    step: int  # counted from 0; a skipped step is tried again under its number
    skipped: bool
    ratio: float  # asked for by the schedule
    entries: int  # sent by this worker, dense tensors included
    message_bytes: int  # of this worker's messages
    padded_bytes: int  # with headers and padding: what each other rank received of this one
    message_ratio: float  # 4 bytes a parameter over padded_bytes: the paper's measure, of what really goes out
    traffic_ratio: float  # what a dense fp32 ring all-reduce would bring to this rank over what came; 0 when alone
    clip_factor: float  # less than 1: clipping fired


class DGCState:
    """Deep Gradient Compression for one DistributedDataParallel model, on one rank.

    ::

        import dgc

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)  # no momentum here: it is the state's
        state = dgc.DGCState(ddp, momentum=0.9, warmup=4 * steps_per_epoch, optimizer=optimizer)
        ddp.register_comm_hook(state, dgc.hook)

    All ranks give the same options; the first step compares them.

    :param parameters: a module, wrapped or not, or pairs of names and parameters.
    :param process_group: that DDP uses; None for the default one.
    :param momentum: of SGD; 0 turns momentum correction off. The optimizer has none.
    :param nesterov: Nesterov momentum.
    :param clip_norm: largest L2 norm of the gradient averaged over all workers; each clips its own by N^-1/2 of it. Everything is then
        exchanged after the last bucket.
    :param ratio: share of the entries that is sent at each step, once warmed up.
    :param warmup: steps of the paper's warm-up (25, 6.25, 1.5625 and 0.4 % in equal parts), or a pair of ratios and steps of each:
        ``([0.25, 0.05], 500)``.
    :param values: of sparse tensors: fp32, fp16, bf16, int8 or sign. What rounding loses is kept for later steps.
    :param schedule: in place of ratio and warmup: a :class:`dgc.Schedule`, or its text, such as ``"0.25,0.0625,0.001:500"``.
    :param dense_values: of tensors that are sent whole: those of fewer than two dimensions.
    :param dense: names of further parameters that are to be sent whole.
    :param indices: coding of positions: auto, rice, runs or bitmap.
    :param selection: how the largest entries are found: reuse, sampled or exact. All find the same.
    :param masking: momentum factor masking.
    :param optimizer: checked: one that has momentum of its own is refused.
    :param scaler: a GradScaler. Gradients are unscaled before anything else; a step with Inf or NaN on any rank is skipped on all.
    :param nonfinite: "error": Inf or NaN in a gradient raises :class:`dgc.Error` on all ranks; "skip": the step is dropped on all ranks (and
        everything is exchanged after the last bucket). Default: "skip" with a scaler, else "error".
    :param check_parameters_every: steps between comparisons of a hash of the parameters across ranks; 0 turns it off.
    :param threads: of the compression of a bucket.
    :param path: "core": libdgc, for parameters on the CPU; "torch": torch operations, for any device; "auto".
    """

    def __init__(self, parameters: Union[torch.nn.Module, NamedParameters], process_group: Optional[dist.ProcessGroup] = None,
                 momentum: float = 0.9, nesterov: bool = False, clip_norm: Optional[float] = None, ratio: float = 0.001,
                 warmup: Optional[Warmup] = None, values: str = "fp16", *, schedule: Union[_core.Schedule, str, None] = None,
                 dense_values: str = "fp32", dense: Sequence[str] = (), indices: str = "auto", selection: str = "reuse", masking: bool = True,
                 optimizer: Optional[torch.optim.Optimizer] = None, scaler: Optional[Any] = None, nonfinite: Optional[str] = None,
                 check_parameters_every: int = 100, threads: int = 1, path: str = "auto") -> None:
        if not dist.is_available() or not dist.is_initialized():
            _core.fail("wrong_order", "DGCState", "torch.distributed", "has no process group yet", "call torch.distributed.init_process_group first")
        for name, value, accepted in (("path", path, ("auto", "core", "torch")), ("nonfinite", nonfinite, (None, "error", "skip"))):
            if value not in accepted:
                _core.fail("invalid_argument", "DGCState", f"{name} {value!r}", "is unknown", f"use one of: {', '.join(a for a in accepted if a)}")
        named = named_parameters_of(parameters)
        self.process_group = process_group
        self.scaler = scaler
        self._scaled = scaler is not None
        self.nonfinite = nonfinite or ("skip" if scaler is not None else "error")
        self.check_parameters_every = check_parameters_every
        self._rank, self._workers = dist.get_rank(process_group), dist.get_world_size(process_group)
        self._specs: List[Spec] = specs_of(named, dense)
        self._options = Options(schedule=schedule_of(ratio, warmup, schedule), momentum=momentum, nesterov=nesterov, masking=masking,
                                clip_norm=clip_norm or 0.0, selection=selection, values=values, dense_values=dense_values, indices=indices,
                                schema=0, threads=threads)
        self._options = self._options._replace(schema=zlib.crc32(self._description().encode()))
        on_cpu = all(p.device.type == "cpu" for _, p in named)
        if path == "core" and not on_cpu:
            _core.fail("invalid_argument", "DGCState", "path 'core'", "needs all parameters on the CPU", "use 'torch' or 'auto'")
        self._make_residuals("core" if path != "torch" and on_cpu else "torch", [p.device for _, p in named])
        self._begin()
        self.attach(named)
        if optimizer is not None:
            check_optimizer(optimizer, momentum, nesterov)
            if isinstance(optimizer, SGD):
                optimizer.dgc_state = self

    def _make_residuals(self, path: str, devices: Sequence[torch.device]) -> None:
        self._path = path
        if path == "core":
            self._residuals: Union[CoreResiduals, TorchResiduals] = CoreResiduals(self._specs, self._rank, self._workers, self._options)
        else:
            self._residuals = TorchResiduals(self._specs, self._rank, self._workers, self._options, devices)

    def _begin(self) -> None:
        """What is known of the step under way, and of the ranks: nothing."""
        self._lock = threading.Lock()  # callbacks of several buckets may run at once
        self._agreed = False  # the ranks have compared their options
        self._failure: Optional[Exception] = None
        self._waiting: List[Any] = []  # buckets, until the last has come
        self._exchanges = 0  # begun in this step
        self._pending = 0  # of these
        self._last_sent = False
        self._frozen: List[int] = []
        self._bytes = [0, 0]
        self._on_wire: Dict[int, Any] = {}  # tensors of the last exchange of each number
        self.stats: Optional[StepStats] = None
        self.skipped = False

    # ---- what users ask ----------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps done so far; the schedule's position."""
        return self._residuals.step

    @property
    def schedule(self) -> _core.Schedule:
        return self._options.schedule

    @property
    def deferred(self) -> bool:
        """Everything is exchanged after the last bucket: for clipping, with a scaler, and where a step may have to be skipped."""
        return self._options.clip_norm > 0.0 or self.nonfinite == "skip" or self._scaled

    def report(self) -> str:
        """How each tensor travels, and why, for people."""
        ratio = self.schedule.ratio_at(self.step)
        rows = [("tensor", "shape", "sent", "entries", "why")]
        for s in self._specs:
            k = s.elements if s.dense else _core.entries_at(ratio, s.elements)
            why = f"ratio {ratio:g}" if not s.dense else "fewer than two dimensions" if len(s.shape) < 2 else "asked for"
            rows.append((s.name, "x".join(map(str, s.shape)) or "scalar", "dense" if s.dense else "sparse", f"{k:,}", why))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[4]]) for row in rows]
        overlap = "off: " + ("clipping" if self._options.clip_norm > 0.0 else "a scaler" if self._scaled else "steps may be skipped") if self.deferred else "on"
        return "\n".join([*lines, f"overlap with backward: {overlap}; path: {self._path}", self.schedule.describe().rstrip()])

    # ---- saving ------------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """u, v and the step of this rank, as copies on the CPU: every rank saves its own. Values are in the order of the
        parameter's memory. Not between backward's first bucket and its end."""
        tensors = range(len(self._specs))
        has_velocity = self._options.momentum != 0.0
        return {
            "version": 1, "rank": self._rank, "workers": self._workers, "step": self.step,
            "shapes": {s.name: list(s.shape) for s in self._specs},
            "velocity": {self._specs[t].name: self._residuals.velocity(t).detach().cpu().clone() for t in tensors} if has_velocity else {},
            "residual": {self._specs[t].name: self._residuals.residual(t).detach().cpu().clone() for t in tensors},
        }

    def load_state_dict(self, saved: Union[Dict[str, Any], Sequence[Dict[str, Any]]]) -> None:
        """What this rank saved; or, to go on with another number of workers, what all ranks saved, as a list: old rank i goes to rank i
        mod N, so that the sums of u and of v over all workers stay what they were. On an Error nothing has changed."""
        everything = [saved] if isinstance(saved, dict) else list(saved)
        for one in everything:
            self._check_saved(one)
        if isinstance(saved, dict):
            if (saved["rank"], saved["workers"]) != (self._rank, self._workers):
                _core.fail("state_mismatch", "load_state_dict", f"rank {self._rank} of {self._workers}",
                           f"was given what rank {saved['rank']} of {saved['workers']} saved", "give the list of what all ranks saved")
        elif sorted(one["rank"] for one in everything) != list(range(everything[0]["workers"] if everything else 0)):
            _core.fail("state_mismatch", "load_state_dict", "list", "is not of all ranks of one run, each once")
        if len({one["step"] for one in everything}) != 1:
            _core.fail("state_mismatch", "load_state_dict", "list", "was not saved at one step")
        mine = everything if isinstance(saved, dict) else [one for one in everything if one["rank"] % self._workers == self._rank]
        self._residuals.restore()  # of a step that ended in the middle: not to be put back over what is loaded
        for t, spec in enumerate(self._specs):
            for part, target in (("velocity", self._residuals.velocity(t)), ("residual", self._residuals.residual(t))):
                if target is None:
                    continue
                target.zero_()
                for one in sorted(mine, key=lambda one: one["rank"]):
                    target.add_(one[part][spec.name].to(target.device))
        self._residuals.step = everything[0]["step"]
        self._begin()

    def _check_saved(self, saved: Dict[str, Any]) -> None:
        if saved.get("version") != 1:
            _core.fail("bad_version", "load_state_dict", "version", f"{saved.get('version')!r} is not one that this package reads")
        shapes = {s.name: list(s.shape) for s in self._specs}
        if saved["shapes"] != shapes:
            name = next(n for n in [*shapes, *saved["shapes"]] if shapes.get(n) != saved["shapes"].get(n))
            _core.fail("state_mismatch", "load_state_dict", f"'{name}'", f"is {shapes.get(name)} here and {saved['shapes'].get(name)} in what was saved")
        if bool(saved["velocity"]) != (self._options.momentum != 0.0):
            _core.fail("state_mismatch", "load_state_dict", "velocity", "is there with momentum only: this state or the saved one has none",
                       "use the momentum that was used")

    def __getstate__(self) -> Dict[str, Any]:
        """Neither the process group nor the parameters nor the scaler: after unpickling, :meth:`attach` them."""
        options = self._options._asdict()
        schedule = options.pop("schedule")
        final = schedule.warmup_steps
        options["ratios"] = [schedule.ratio_at(s) for s in range(final + 1)]
        return {"options": options, "specs": self._specs, "nonfinite": self.nonfinite, "scaled": self._scaled, "check_parameters_every": self.check_parameters_every,
                "saved": self.state_dict()}

    def __setstate__(self, pickled: Dict[str, Any]) -> None:
        options = dict(pickled["options"])
        ratios = options.pop("ratios")
        self._options = Options(schedule=_core.Schedule.stages(ratios[:-1], 1, ratios[-1]), **options)
        self._specs = pickled["specs"]
        self.process_group = self.scaler = None
        self._scaled = pickled["scaled"]
        self.nonfinite, self.check_parameters_every = pickled["nonfinite"], pickled["check_parameters_every"]
        self._rank, self._workers = pickled["saved"]["rank"], pickled["saved"]["workers"]
        self._make_residuals("core", [])
        self.load_state_dict(pickled["saved"])
        self._ids: Dict[torch.Tensor, int] = {}

    def attach(self, parameters: Union[torch.nn.Module, NamedParameters], scaler: Optional[Any] = None) -> None:
        """Says which parameters the names are, after unpickling or when a model was made anew; and the GradScaler, where there was one."""
        named = named_parameters_of(parameters)
        found = {name: list(p.shape) for name, p in named}
        for spec in self._specs:
            if found.pop(spec.name, None) != spec.shape:
                _core.fail("state_mismatch", "attach", f"'{spec.name}'", f"is not among the parameters, or not of shape {spec.shape}")
        if found:
            _core.fail("state_mismatch", "attach", f"'{next(iter(found))}'", "is not in this state")
        by_name = {spec.name: t for t, spec in enumerate(self._specs)}
        devices = {p.device.type for _, p in named}
        if self._path == "core" and devices != {"cpu"}:
            saved = self.state_dict()
            placed = sorted(((by_name[name], p.device) for name, p in named))
            self._make_residuals("torch", [device for _, device in placed])
            self.load_state_dict(saved)
        self._ids = {p: by_name[name] for name, p in named}
        if scaler is not None:
            self.scaler, self._scaled = scaler, True

    def _description(self) -> str:
        """What has to be the same on all ranks, a line each."""
        options = self._options._asdict()
        lines = [f"dgc {_core.__version__}", f"workers {self._workers}", f"nonfinite {self.nonfinite}", f"scaler {self._scaled}", f"check_parameters_every {self.check_parameters_every}"]
        lines += [f"{name} {options[name]}" for name in ("momentum", "nesterov", "masking", "clip_norm", "values", "dense_values", "indices")]
        lines += self.schedule.describe().splitlines()
        lines += [f"parameter '{s.name}' {s.shape} {'dense' if s.dense else 'sparse'}" for s in self._specs]
        return "\n".join(lines)
