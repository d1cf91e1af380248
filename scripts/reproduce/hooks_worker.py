"""One rank of scripts/reproduce/pytorch-hooks: trains with one hook, and says what it measured.

A row of the tables is a hook and a list of stages. A stage is a number of steps in which the hook
always sends the same amount: DGC's warm-up has several, PowerSGD has one before it begins.
"""

import argparse
import dataclasses
import gc
import gzip
import json
import math
import os
import pathlib
import sys
import time

WORKERS = 4
BATCH = 128  # of all workers together
RATE = 0.05  # learning rate, falls to 0 as a cosine
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str  # stages with the same name take the same time a step
    steps: int


@dataclasses.dataclass(frozen=True)
class Row:
    title: str
    hook: str
    ratios: tuple = ()  # of DGC: those of the warm-up, and the last one
    rank: int = 0  # of PowerSGD
    dense: float = 0.1  # share of the steps before PowerSGD begins
    options: tuple = ()  # more of DGC: names and values

    def stages(self, steps: int) -> list:
        if self.hook == "powersgd":
            first = max(2, round(self.dense * steps))
            return [Stage("powersgd-dense", first), Stage(f"powersgd{self.rank}", steps - first)]
        if self.hook == "dgc":
            warmup = self.ratios[:-1]
            each = steps // 10 // len(warmup) if warmup else 0
            rest = steps - each * len(warmup)
            return [Stage(f"dgc-{r}", each) for r in warmup] + [
                Stage(f"dgc-{self.ratios[-1]}", rest)
            ]
        return [Stage(self.hook, steps)]

    def short_stages(self, steps: int) -> list:
        """The same stages with `steps` each, to measure their times."""
        return [Stage(stage.name, steps) for stage in self.stages(1000)]


PAPER = (0.25, 0.0625, 0.015625, 0.004)
ROWS = {
    "ddp": Row("DDP", "ddp"),
    "fp16": Row("fp16 hook", "fp16"),
    "bf16": Row("bf16 hook", "bf16"),
    "powersgd1": Row("PowerSGD, rank 1", "powersgd", rank=1),
    "powersgd2": Row("PowerSGD, rank 2", "powersgd", rank=2),
    "powersgd4": Row("PowerSGD, rank 4", "powersgd", rank=4),
    "powersgd4-early": Row("PowerSGD, rank 4, begun early", "powersgd", rank=4, dense=0.004),
    "dgc1": Row("dgc.hook, 1 %", "dgc", ratios=(*PAPER[:3], 0.01)),
    "dgc": Row("dgc.hook, 0.1 %", "dgc", ratios=(*PAPER, 0.001)),
    "dgc-early": Row("dgc.hook, 0.1 %, no warm-up", "dgc", ratios=(0.001,)),
    "dgc-skip": Row(
        "dgc.hook, skip", "dgc", ratios=(0.001,), options=(("nonfinite", "skip"),)
    ),
    "dgc-owner": Row(
        "dgc.hook, owner", "dgc", ratios=(0.001,), options=(("algorithm", "owner"),)
    ),
}


def load(folder, part):
    import torch

    tensors = []
    for name, header in ((f"{part}-images-idx3-ubyte.gz", 16), (f"{part}-labels-idx1-ubyte.gz", 8)):
        with gzip.open(pathlib.Path(folder, name)) as file:
            data = bytearray(file.read())
        tensors.append(torch.frombuffer(data, dtype=torch.uint8, offset=header))
    return tensors[0].view(-1, 1, 28, 28), tensors[1].long()


def network():
    from torch import nn

    # fmt: off
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 512), nn.ReLU(), nn.Linear(512, 10))
    # fmt: on


def wrap(net, row, stages, **of_ddp):
    """DDP with the hook of a row, and the optimizer that goes with it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if row.hook == "powersgd":
        # One bucket only. PowerSGD begins collectives in callbacks, and their order may differ
        # between ranks on Gloo: with more buckets it fails.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    ddp = torch.nn.parallel.DistributedDataParallel(net, **of_ddp)
    if row.hook == "dgc":
        import dgc

        optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
        warmup = ([r for r in row.ratios[:-1]], stages[0].steps) if len(stages) > 1 else None
        state = dgc.DGCState(
            ddp,
            optimizer=optimizer,
            momentum=MOMENTUM,
            ratio=row.ratios[-1],
            warmup=warmup,
            **dict(row.options),
        )
        ddp.register_comm_hook(state, dgc.hook)
        return ddp, optimizer
    if row.hook == "powersgd":
        # Error feedback and warm start are on by default.
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=row.rank, start_powerSGD_iter=stages[0].steps
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif row.hook != "ddp":
        # By another name: DDP refuses the bf16 hook by its own name without NCCL, but Gloo of
        # PyTorch 2 can add bf16.
        hook = getattr(default_hooks, f"{row.hook}_compress_hook")
        ddp.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    return ddp, torch.optim.SGD(ddp.parameters(), lr=RATE, momentum=MOMENTUM)


def received_and_sent():
    """Bytes that the interface of this rank has received and sent so far."""
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        device, _, numbers = line.partition(":")
        if device.strip() == interface:
            n = [int(word) for word in numbers.split()]
            return n[0], n[8]
    sys.exit(f"hooks_worker: no interface {interface} here")


def busy_seconds():
    """CPU time of all processes of the machine so far."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class Accuracy:
    """On the test images, of which every rank takes its share."""

    def __init__(self, folder, rank):
        images, labels = load(folder, "t10k")
        self.images, self.labels, self.count = (
            images[rank::WORKERS],
            labels[rank::WORKERS],
            len(labels),
        )

    def __call__(self, net):
        import torch
        import torch.distributed as dist

        with torch.no_grad():
            parts = zip(self.images.split(250), self.labels.split(250))
            correct = sum(
                ((net(i.float() / 255).argmax(1) == l).sum() for i, l in parts), torch.zeros(1)
            )
        dist.all_reduce(correct)
        return 100 * float(correct) / self.count


class Measured:
    """Times of all steps, and bytes of all stages, on this rank."""

    def __init__(self):
        self.seconds, self.stages = [], []
        self.began, self.busy, self.own = time.monotonic(), busy_seconds(), time.process_time()

    def stage(self):
        """At the beginning of each stage and at the end of the last one."""
        self.stages.append(received_and_sent())

    def result(self, stages):
        import torch
        import torch.distributed as dist

        own = torch.tensor([time.process_time() - self.own], dtype=torch.float64)
        dist.all_reduce(own)
        wall, busy = time.monotonic() - self.began, busy_seconds() - self.busy
        pairs = [
            [(b - a) / stage.steps for a, b in zip(before, after)]
            for before, after, stage in zip(self.stages, self.stages[1:], stages)
        ]
        return {
            "seconds": [round(s, 5) for s in self.seconds],
            "stages": [dataclasses.asdict(stage) for stage in stages],
            "received": [pair[0] for pair in pairs],
            "sent": [pair[1] for pair in pairs],
            # What was not of our ranks, the kernel's work for the network included.
            "others": max(0.0, (busy - float(own)) / (wall * os.cpu_count())),
        }


def train(row, stages, options):
    import torch
    import torch.distributed as dist

    rank, steps = dist.get_rank(), sum(stage.steps for stage in stages)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    net = network()
    ddp, optimizer = wrap(net, row, stages)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps)
    )
    images, labels = load(options.data, "train")
    # The same order on all ranks.
    epochs = -(-steps * BATCH // len(labels))
    order = torch.cat([torch.randperm(len(labels)) for _ in range(epochs)])
    accuracy, curve = Accuracy(options.data, rank), []
    begins = {sum(stage.steps for stage in stages[:i]) for i in range(len(stages))}
    dist.barrier()
    measured = Measured()
    for step in range(steps):
        if step in begins:
            dist.barrier()
            measured.stage()
        batch = order[step * BATCH + rank : (step + 1) * BATCH : WORKERS]
        began = time.monotonic()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(images[batch].float() / 255), labels[batch])
        loss.backward()
        optimizer.step()
        measured.seconds.append(time.monotonic() - began)
        scheduler.step()
        if options.evaluate and ((step + 1) % options.evaluate == 0 or step + 1 == steps):
            curve.append((step + 1, round(accuracy(net), 2)))
    measured.stage()
    result = measured.result(stages)
    if rank == 0:
        parameters = sum(p.numel() for p in net.parameters())
        result.update(curve=curve, parameters=parameters, torch=torch.__version__)
        print(json.dumps(result), flush=True)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, required=True, help="of the whole training")
    parser.add_argument("--short", action="store_true", help="--steps are those of each stage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate", type=int, default=0, help="every so many steps; 0: never")
    options = parser.parse_args()

    import torch.distributed as dist

    row = ROWS[options.row]
    dist.init_process_group("gloo")
    train(row, (row.short_stages if options.short else row.stages)(options.steps), options)
    # DDP's objects form cycles. Those that outlive the process group make PyTorch 2 abort now and
    # then while Python ends.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
