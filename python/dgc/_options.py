"""The options of DGCState and LocalSteps. These tables are the one place that knows them.

It makes the checks of the constructor, its documentation, what ranks compare, what is saved, and
repr(). The constructor's signature takes its defaults from here. C++ checks the ranges of what the
compressor is made with.
"""

import ctypes
import dataclasses
from typing import (
    Any,
    ClassVar,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from . import _check, _core
from ._check import Kind

# Steps of the paper's warm-up, or ratios with the steps of each.
Warmup = Union[int, Tuple[Sequence[float], int]]

RANKS = "ranks"  # has to be the same on all ranks; options without it change nothing in the result,
# or are compared as what follows from them: the schedule, and which tensors are dense
CORE = "core"  # the compressor is made with it


def _option(default: Any, kind: Kind, example: str, doc: str, *uses: str) -> Any:
    return dataclasses.field(
        default=default, metadata={"kind": kind, "example": example, "doc": doc, "uses": uses}
    )


def _momentum(value: Any) -> float:
    momentum = float(_check.within(0.0, 1.0).read(value))
    # C++ has it as a float: what is 0 there is no momentum here.
    return momentum if ctypes.c_float(momentum).value != 0.0 else 0.0


def _warmup(value: Any) -> Warmup:
    if not isinstance(value, (tuple, list)):
        return int(_check.whole(0).read(value))
    ratios, steps = value
    if isinstance(ratios, str) or len(ratios) == 0:
        raise ValueError
    return [_check.SHARE.read(ratio) for ratio in ratios], _check.whole(1).read(steps)


AUTO = "auto"


def _ratio(value: Any) -> Union[float, str]:
    return AUTO if isinstance(value, str) and value == AUTO else float(_check.SHARE.read(value))


def _link(value: Any) -> str:
    _core.parse_link(_check.TEXT.read(value))  # says itself what is wrong
    return str(value)


def _schedule(value: Any) -> Union[_core.Schedule, str]:
    return value if isinstance(value, _core.Schedule) else str(_check.TEXT.read(value))


T = TypeVar("T", bound="Options")


@dataclasses.dataclass(frozen=True)
class Options:
    """Checked, each in one form."""

    owner: ClassVar[str] = "DGCState"  # named by errors

    # fmt: off
    momentum: float = _option(
        0.9, Kind(_check.within(0.0, 1.0).wanted, _momentum), "0.9",
        "of SGD; 0 turns momentum correction off. The optimizer has none.", RANKS, CORE)
    nesterov: bool = _option(False, _check.FLAG, "True", "Nesterov momentum.", RANKS, CORE)
    momentum_correction: str = _option(
        "local", _check.one_of(("local", "global", "off")), "'global'",
        "\"local\": the paper's, each rank accumulates a velocity of its own. \"global\": momentum "
        "of what all ranks applied, for many ranks; no velocity, and nothing is masked. \"off\": "
        "the optimizer has the momentum, torch.optim.SGD with the same momentum and nesterov; this "
        "is gradient dropping (the paper's eq. 5), to compare with.",
        RANKS, CORE)
    clip_norm: float = _option(
        0.0, _check.optional(_check.within(0.0), 0.0), "0.25",
        "largest L2 norm of the gradient averaged over all workers; each worker clips its own "
        "gradient by N^-1/2 of it. All buckets are then exchanged after the last one. 0 or None: "
        "no clipping.", RANKS, CORE)
    ratio: Union[float, str] = _option(
        0.001, Kind(f"{_check.SHARE.wanted}, or 'auto'", _ratio), "0.001",
        "share of the entries that is sent at each step, after the warm-up. \"auto\": 0.1 %, or more "
        "where the network has time for it beside backward; :attr:`decisions` has what was decided.")
    warmup: Optional[Warmup] = _option(
        None,
        Kind("a whole number of steps, or a pair of ratios, one at least, and the steps of each",
             _check.optional(Kind("", _warmup)).read),
        "warmup=2000 or warmup=([0.25, 0.05], 500)",
        "steps of the paper's warm-up (25, 6.25, 1.5625 and 0.4 % in equal parts), or a pair of "
        "ratios and the steps of each: ``([0.25, 0.05], 500)``.")
    values: str = _option(
        "fp16", _check.TEXT, "'fp16'",
        "of sparse tensors: fp32, fp16, bf16, int8, sign, table2 or table4. What rounding loses is "
        "kept for later steps.", RANKS, CORE)
    schedule: Union[_core.Schedule, str, None] = _option(
        None, _check.optional(Kind("a dgc.Schedule or its text", _schedule)),
        "schedule='0.25,0.0625,0.001:500' or schedule=dgc.Schedule.paper(2000)",
        "in place of ratio and warmup: a :class:`dgc.Schedule`, or its text, such as "
        "``\"0.25,0.0625,0.001:500\"``.")
    dense_values: str = _option(
        "fp32", _check.TEXT, "'fp16'",
        "of tensors that are sent whole: those of fewer than two dimensions.", RANKS, CORE)
    dense: Sequence[str] = _option(
        (), _check.NAMES, "dense=['embedding.weight']",
        "names of further parameters that are to be sent whole.")
    indices: str = _option(
        "auto", _check.TEXT, "'rice'", "coding of positions: auto, rice, runs or bitmap.",
        RANKS, CORE)
    selection: str = _option(
        "reuse", _check.TEXT, "'exact'",
        "how the largest entries are found: reuse, sampled or exact. All find the same.", CORE)
    masking: bool = _option(True, _check.FLAG, "False", "momentum factor masking.", RANKS, CORE)
    nonfinite: Optional[str] = _option(
        None, _check.optional(_check.one_of(("error", "skip"))), "'skip'",
        "\"error\": Inf or NaN in a gradient raises :class:`dgc.Error` on all ranks. \"skip\": the "
        "step is dropped on all ranks, and all buckets are exchanged after the last one. Default: "
        "\"skip\" with a scaler, else \"error\".")
    check_parameters_every: int = _option(
        100, _check.whole(0), "100",
        "steps between comparisons of a hash of the parameters across ranks; there is one after "
        "the first step, too. 0 turns them off.", RANKS)
    algorithm: str = _option(
        "allgather", _check.one_of(("allgather", "owner")), "'owner'",
        "\"allgather\": every message goes to all ranks, which takes one network delay. \"owner\": "
        "the owner of each range of indices adds what all ranks selected there to its residual, "
        "selects again, and sends that to all ranks: two delays, and traffic does not grow with the "
        "number of ranks. It needs Gloo, and parameters on the CPU.", RANKS)
    steps: Optional[int] = _option(
        None, _check.optional(_check.whole(1)), "10000",
        "with ratio \"auto\": how many steps the run has. Then at least 7 / steps is sent, because an "
        "entry waits for about 1 / ratio steps.", RANKS)
    link: Optional[str] = _option(
        None, _check.optional(Kind("the rate and the delay of a link", _link)), "'100Mbps,25ms'",
        "with ratio \"auto\": the link between ranks. None: it is measured.", RANKS)
    threads: int = _option(1, _check.whole(1), "2", "that compress a bucket.", CORE)
    path: str = _option(
        "auto", _check.one_of(("auto", "core", "torch", "triton")), "'auto'",
        "\"core\": libdgc, for parameters on the CPU; \"triton\": fused kernels, for parameters on one "
        "GPU, where Triton is installed; \"torch\": torch operations, for any device; \"auto\": the "
        "first of these that can be. The environment variable DGC_PATH takes the place of \"auto\".")
    # fmt: on

    @classmethod
    def read(cls: Type[T], given: Mapping[str, Any]) -> T:
        """Checks what was given; what is missing has its default."""
        checked = {}
        for option in dataclasses.fields(cls):
            data, name = option.metadata, option.name
            example = data["example"] if "=" in data["example"] else f"{name}={data['example']}"
            checked[name] = _check.check(
                cls.owner, name, given.get(name, option.default), data["kind"], example
            )
        return cls(**checked)

    @classmethod
    def documentation(cls) -> str:
        return "".join(
            f"    :param {f.name}: {f.metadata['doc']}\n" for f in dataclasses.fields(cls)
        )

    @property
    def has_velocity(self) -> bool:
        """Whether a rank has u beside v."""
        return self.momentum != 0.0 and self.momentum_correction == "local"

    @property
    def late(self) -> bool:
        """Whether momentum is the optimizer's, which applies it to what all ranks have sent."""
        return self.momentum != 0.0 and self.momentum_correction == "off"

    @property
    def feedback(self) -> float:
        """m, where that much of an applied sum goes back into the residuals of all ranks."""
        return self.momentum if self.momentum_correction == "global" else 0.0

    @property
    def decay(self) -> float:
        """What is left of v before a gradient is added to it."""
        return 1.0

    @property
    def over_senders(self) -> bool:
        """Whether the mean of an entry is over those who sent it."""
        return False

    def _used(self, use: str) -> Iterator[Tuple[str, Any]]:
        for option in dataclasses.fields(self):
            if use in option.metadata["uses"]:
                yield option.name, getattr(self, option.name)

    def of_compressor(self) -> Dict[str, Any]:
        return dict(self._used(CORE))

    def lines(self) -> List[str]:
        """What ranks compare."""
        return [f"{name} {value}" for name, value in self._used(RANKS)]

    def changed(self) -> Dict[str, Any]:
        """Those that are not at their defaults."""
        pairs = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {f.name: value for f, value in pairs if value != f.metadata["kind"].read(f.default)}

    def plain(self) -> Dict[str, Any]:
        """In types that every pickle and torch.load(weights_only=True) knows, for Options.read."""
        saved = dataclasses.asdict(dataclasses.replace(self, schedule=None))
        saved["schedule"] = self.schedule
        if isinstance(self.schedule, _core.Schedule):
            last = self.schedule.warmup_steps
            ratios = [self.schedule.ratio_at(step) for step in range(last)]
            saved["warmup"] = (ratios, 1) if ratios else None
            saved["ratio"], saved["schedule"] = self.schedule.ratio_at(last), None
        return saved

    @property
    def least_ratio(self) -> float:
        """What is sent whatever else is free."""
        if not isinstance(self.ratio, str):
            return self.ratio
        covers = 7.0 / self.steps if self.steps is not None else 0.0
        return min(max(covers, 0.001), 0.25)

    def _check_auto(self) -> None:
        for name, value in (("steps", self.steps), ("link", self.link)):
            if self.ratio != AUTO and value is not None:
                _core.fail(
                    "invalid_argument",
                    self.owner,
                    name,
                    "is for ratio='auto', and would change nothing",
                    f"give ratio='auto', or no {name}",
                )

    def make_schedule(self) -> _core.Schedule:
        """Of schedule, or of ratio and warmup. What ratio "auto" decides comes on top of it."""
        self._check_auto()
        ratio, warmup = self.least_ratio, self.warmup
        if self.schedule is not None:
            if warmup is not None or self.ratio != type(self).ratio:
                _core.fail(
                    "invalid_argument",
                    self.owner,
                    "schedule",
                    "says everything about the ratio",
                    "give no ratio and no warmup beside it",
                )
            given = self.schedule
            return _core.Schedule.parse(given) if isinstance(given, str) else given
        if warmup is None or warmup == 0:
            return _core.Schedule(ratio)
        if not isinstance(warmup, int):
            return _core.Schedule.stages(list(warmup[0]), warmup[1], ratio)
        if ratio == Options.ratio:
            return _core.Schedule.paper(warmup)
        ratios = _core.Schedule.paper_stages(ratio)
        if not ratios:
            return _core.Schedule(ratio)
        return _core.Schedule.stages(ratios, max(1, warmup // len(ratios)), ratio)


def _again(name: str, default: Any) -> Any:
    """An option of DGCState with another default."""
    of_state = {option.name: option for option in dataclasses.fields(Options)}
    return dataclasses.field(default=default, metadata=of_state[name].metadata)


def _decay(value: Any) -> float:
    decay = float(_check.SHARE.read(value))
    return ctypes.c_float(decay).value  # as C++ has it, so that all paths multiply by the same


@dataclasses.dataclass(frozen=True)
class LocalOptions(Options):
    """Of LocalSteps: those of DGCState that are left, with other defaults, and its own."""

    owner: ClassVar[str] = "LocalSteps"
    # fmt: off
    names: ClassVar[Sequence[str]] = (
        "local_steps", "outer_lr", "outer_momentum", "residual_decay", "mean", "ratio", "warmup",
        "schedule", "values", "dense_values", "dense", "indices", "selection",
        "check_parameters_every", "algorithm", "threads", "path",
    )
    momentum: float = _again("momentum", 0.0)
    ratio: float = _option(
        1 / 64, _check.SHARE, "0.015625",
        "share of the entries that is sent in each round, after the warm-up.")
    values: str = _again("values", "table2")
    dense_values: str = _again("dense_values", "table2")
    local_steps: int = _option(
        30, _check.whole(1), "30", "steps of the inner optimizer in a round.", RANKS)
    outer_lr: float = _option(
        1.0, _check.within(0.0), "0.7",
        "what the mean change of a round is multiplied by. :attr:`LocalSteps.outer_lr` changes it.",
        RANKS)
    outer_momentum: float = _option(
        0.0, _check.within(0.0, 1.0), "0.9",
        "Nesterov momentum on the mean change, as in DiLoCo. Only with ratio 1: with fewer entries, "
        "the decaying residual is in its place.", RANKS)
    residual_decay: float = _option(
        0.95, Kind(_check.SHARE.wanted, _decay), "0.95",
        "what is left of the residual before the change of a round is added to it; 1 keeps all.",
        RANKS, CORE)
    mean: str = _option(
        "workers", _check.one_of(("workers", "senders")), "'senders'",
        "of an entry: over all \"workers\", or over the \"senders\", those who sent it. The latter "
        "needs algorithm \"allgather\".", RANKS)
    # fmt: on

    @property
    def decay(self) -> float:
        return self.residual_decay

    @property
    def over_senders(self) -> bool:
        return self.mean == "senders"

    @classmethod
    def documentation(cls) -> str:
        docs = {option.name: option.metadata["doc"] for option in dataclasses.fields(cls)}
        return "".join(f"    :param {name}: {docs[name]}\n" for name in cls.names)
