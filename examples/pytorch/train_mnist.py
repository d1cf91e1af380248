#!/usr/bin/env python3
"""Trains a small network on MNIST or Fashion-MNIST with Deep Gradient Compression.

    torchrun --nproc_per_node 4 examples/pytorch/train_mnist.py --epochs 5

It is an ordinary DDP script but for two lines with `dgc`, and an optimizer without momentum.
"""

import argparse
import gzip
import math
import os

import dgc
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load(folder, part):
    """Images and labels from IDX files, compressed or not."""
    tensors = []
    for name, header in ((f"{part}-images-idx3-ubyte", 16), (f"{part}-labels-idx1-ubyte", 8)):
        path = os.path.join(folder, name)
        with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as file:
            data = bytearray(file.read())
        tensors.append(torch.frombuffer(data, dtype=torch.uint8, offset=header))
    return tensors[0].view(-1, 1, 28, 28).float() / 255, tensors[1].long()


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10**9, help="stop early")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = network()
    examples = TensorDataset(*load(options.data, "train"))
    sampler = DistributedSampler(examples)
    loader = DataLoader(examples, batch_size=128 // dist.get_world_size(), sampler=sampler)
    steps = min(options.steps, options.epochs * len(loader))

    ddp = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)  # no momentum: the state has it
    state = dgc.DGCState(ddp, optimizer=optimizer, momentum=0.9, warmup=len(loader))
    ddp.register_comm_hook(state, dgc.hook)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * min(step / steps, 1)))

    while state.step < steps:
        sampler.set_epoch(state.step // len(loader))
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if state.step == steps:
                break
        if dist.get_rank() == 0:
            images, labels = load(options.data, "t10k")
            accuracy = 100 * (net(images).argmax(1) == labels).double().mean().item()
            print(f"step {state.step} accuracy {accuracy:.2f} loss {loss.item():.4f} "
                  f"message_ratio {state.stats.message_ratio:.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
