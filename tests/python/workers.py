"""Ranks as forked processes over Gloo on loopback, for tests."""

import os
import pickle
import sys
import tempfile
import traceback
from typing import Any, Callable, List

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # advice about find_unused_parameters

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
# The first bucket takes a megabyte, whatever bucket_cap_mb says, and would hold all of these models.
dist._DEFAULT_FIRST_BUCKET_BYTES = 2048

DEADLINE = 120  # seconds for a collective; a rank that waits longer fails


def run(work: Callable[..., Any], *args: Any, ranks: int = 4) -> List[Any]:
    """What work(rank, *args) returns on each rank. Raises what any rank raised."""
    import datetime

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid != 0:
                children.append(pid)
                continue
            status = 1
            try:
                dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
                                        timeout=datetime.timedelta(seconds=DEADLINE))
                result = work(rank, *args)
                with open(f"{folder}/{rank}", "wb") as file:
                    pickle.dump(result, file)
                # None leaves while another may still need its connections.
                dist.barrier()
                status = 0
            except BaseException:  # noqa: B902: whatever it was, the parent has to hear of it
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        failed = [rank for rank, pid in enumerate(children) if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0]
        if failed:
            raise AssertionError(f"ranks {failed} failed: see above")
        results = []
        for rank in range(ranks):
            with open(f"{folder}/{rank}", "rb") as file:
                results.append(pickle.load(file))
        return results


class Recorded(torch.nn.Module):
    """A model whose gradients are what is given: the loss is the sum of parameter times gradient."""

    SHAPES = {"first": (60, 50), "bias": (60,), "conv": (8, 4, 3, 3), "scale": (), "second": (40, 60)}

    def __init__(self, seed: int = 1, shapes: dict = SHAPES) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=chance)))

    def forward(self, gradients: dict) -> torch.Tensor:
        return sum((p * gradients[name]).sum() for name, p in self.named_parameters() if name in gradients)


def gradients_of(rank: int, step: int, shapes: dict = Recorded.SHAPES) -> dict:
    """Recorded, the same in every run. Magnitudes differ by tensor and step."""
    chance = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=chance) * 10.0 ** (i % 3 - 1) for i, (name, shape) in enumerate(shapes.items())}


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
