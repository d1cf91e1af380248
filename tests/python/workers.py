"""Ranks as forked processes over Gloo on loopback, and a model whose gradients are given.

A set of ranks is started once and serves all calls of run() that ask for as many: starting
processes and a process group costs more than most of the tests.
"""

import atexit
import datetime
import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Callable, Collection, Dict, List

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # advice about find_unused_parameters
# torch.compile in the ranks: by one thread, and nothing is left behind or found from before.
_compiled = tempfile.TemporaryDirectory()
os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_CACHE_DIR=_compiled.name)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import dgc  # noqa: E402

torch.set_num_threads(1)
# What a version of PyTorch has for the last time is not for the package to use.
for kind in (DeprecationWarning, FutureWarning):
    warnings.filterwarnings("error", category=kind, module=r"dgc(\.|$)")
# The first bucket takes a megabyte, whatever bucket_cap_mb says, and would hold all of these
# models.
dist._DEFAULT_FIRST_BUCKET_BYTES = 2048

DEADLINE = 120  # seconds for a collective; a rank that waits longer fails


class _Ranks:
    """Forked processes with a process group, each at the other end of a pipe."""

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._pids: List[int] = []
        self._pipes: List[Connection] = []
        for rank in range(count):
            ours, theirs = Pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                self._serve(rank, count, theirs)
            theirs.close()
            self._pids.append(pid)
            self._pipes.append(ours)

    def _serve(self, rank: int, count: int, pipe: Connection) -> None:
        """The life of a rank. A result goes back as (True, result), an exception as (False, text)."""
        try:
            store = f"file://{self._folder.name}/store"
            timeout = datetime.timedelta(seconds=DEADLINE)
            dist.init_process_group("gloo", store, rank=rank, world_size=count, timeout=timeout)
            while True:
                work, args = pickle.loads(pipe.recv_bytes())
                pipe.send_bytes(pickle.dumps((True, work(rank, *args))))
        except EOFError:
            os._exit(0)
        except BaseException:  # noqa: B902: whatever it was, the parent has to hear of it
            pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
            os._exit(1)

    def run(self, work: Callable[..., Any], args: Any, dying: Collection[int]) -> List[Any]:
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((work, args)))
        results: List[Any] = [None] * len(self._pipes)
        waiting = dict(zip(self._pipes, range(len(self._pipes))))
        while waiting:
            for pipe in wait(list(waiting)):
                rank = waiting.pop(pipe)
                try:
                    good, results[rank] = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    good, results[rank] = rank in dying, "it ended" if rank not in dying else None
                if not good:
                    raise AssertionError(f"rank {rank} failed: {results[rank]}")
        return results

    def end(self) -> None:
        """At once: what they were doing is of no interest any more."""
        for pipe, pid in zip(self._pipes, self._pids):
            pipe.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._folder.cleanup()


_started: Dict[int, _Ranks] = {}


@atexit.register
def _end_all() -> None:
    while _started:
        _started.popitem()[1].end()


def run(
    work: Callable[..., Any], *args: Any, ranks: int = 4, dying: Collection[int] = ()
) -> List[Any]:
    """What work(rank, *args) returns on each rank. Raises AssertionError with what any rank raised.
    Ranks that are to die have no result, and their set is not used again."""
    if ranks not in _started:
        _started[ranks] = _Ranks(ranks)
    try:
        results = _started[ranks].run(work, args, dying)
    except BaseException:
        _started.pop(ranks).end()
        raise
    if dying:
        _started.pop(ranks).end()
    return results


class Recorded(torch.nn.Module):
    """A model whose gradients are what is given: the loss is the sum of parameter times gradient."""

    SHAPES = {
        "first": (60, 50),
        "bias": (60,),
        "conv": (8, 4, 3, 3),
        "scale": (),
        "second": (40, 60),
    }

    def __init__(self, seed: int = 1, shapes: dict = SHAPES) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=chance)))

    def forward(self, gradients: dict) -> torch.Tensor:
        return sum(
            (p * gradients[name]).sum() for name, p in self.named_parameters() if name in gradients
        )


def gradients_of(rank: int, step: int, shapes: dict = Recorded.SHAPES) -> dict:
    """Recorded, the same in every run. Magnitudes differ by tensor and step."""
    chance = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: torch.randn(shape, generator=chance) * 10.0 ** (i % 3 - 1)
        for i, (name, shape) in enumerate(shapes.items())
    }


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Training:
    """A DDP model with dgc.hook. `optimizer` makes one of the parameters: plain SGD by default."""

    def __init__(self, model=None, ddp=None, optimizer=None, set_to_none=False, **options) -> None:
        self._set_to_none = set_to_none
        self.model = Recorded() if model is None else model
        self.ddp = DDP(self.model, **(ddp or {}))
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.05))
        self.optimizer = make(self.ddp.parameters())
        self.state = dgc.DGCState(self.ddp, optimizer=self.optimizer, **options)
        self.ddp.register_comm_hook(self.state, dgc.hook)

    def backward(self, gradients: dict) -> None:
        self.optimizer.zero_grad(set_to_none=self._set_to_none)
        self.ddp(gradients).backward()

    def step(self, gradients: dict) -> None:
        self.backward(gradients)
        self.optimizer.step()


def same_parts(one: dict, other: dict) -> bool:
    """Whether two state_dicts have the same u and v, bit for bit."""
    return all(
        torch.equal(one[part][name], other[part][name])
        for part in ("velocity", "residual")
        for name in one[part]
    )


def caught(work: Callable[[], Any]) -> Any:
    """The type and text of what work() raises; None where it raises nothing."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
