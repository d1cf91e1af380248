"""One rank of scripts/reproduce/wan in PyTorch: ResNet-20 on random images with a hook of
hooks_worker.py. Rank 0 prints the milliseconds of each step."""

import argparse
import gc
import json
import time

from hooks_worker import ROWS


def network():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside, out, stride):
            super().__init__()
            self.first = nn.Sequential(
                nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
                nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))  # fmt: skip
            self.inside, self.out, self.stride = inside, out, stride

        def forward(self, x):
            short = x[:, :, :: self.stride, :: self.stride]
            if self.out > self.inside:
                extra = (self.out - self.inside) // 2
                short = nn.functional.pad(short, (0, 0, 0, 0, extra, extra))
            return torch.relu(self.first(x) + short)

    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for inside, out in ((16, 16), (16, 32), (32, 64)):
        layers.append(Block(inside, out, out // inside))
        layers += [Block(out, out, 1), Block(out, out, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--buffers", action="store_true", help="DDP sends those of batch normalisation")
    parser.add_argument("--batch", type=int, default=8, help="of this worker")
    options = parser.parse_args()

    import torch
    import torch.distributed as dist
    from hooks_worker import wrap

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    row = ROWS[options.row]
    # PowerSGD begins after two dense steps; they are not counted.
    stages = row.stages(20)
    ddp, optimizer = wrap(network(), row, stages, broadcast_buffers=options.buffers)
    torch.manual_seed(dist.get_rank())
    images, labels = torch.rand(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))
    times = []
    for _ in range(options.steps):
        began = time.monotonic()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
        times.append(1e3 * (time.monotonic() - began))
        if dist.get_rank() == 0:
            print(json.dumps(round(times[-1], 2)), flush=True)
    dist.barrier()
    del ddp, optimizer
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
