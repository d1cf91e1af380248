#!/usr/bin/env python3
"""Trains a small network on Fashion-MNIST with others, over a hub. Members come and go.

On a machine that all can reach, which prints address, pin and token:

    dgc serve --own-model --lr 0.05 --batch 128 --workers 4 --epochs 5 --out runs/mine

On each machine that trains:

    DGC_TOKEN=… examples/pytorch/hub.py https://HOST:7077 --pin sha256:…

Ctrl-C leaves after the round. The same command comes back, also after a crash.
"""

import argparse

import dgc
import torch
from torch import nn
from train_mnist import load, network


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="https://HOST:7077")
    parser.add_argument("--pin", help="sha256:…")
    parser.add_argument("--name", help="another one for each member on a machine")
    parser.add_argument("--state", help="folder for what is not sent yet")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    options = parser.parse_args()

    net = network()
    images, labels = load(options.data, "train")

    def evaluate():
        test_images, test_labels = load(options.data, "t10k")
        scores = net(test_images)
        right = (scores.argmax(1) == test_labels).double().mean()
        print(f"round {member.round}: accuracy {100 * right:.2f}", flush=True)
        return {"accuracy": right, "loss": nn.functional.cross_entropy(scores, test_labels)}

    member = dgc.join(options.url, net, pin=options.pin, name=options.name, state=options.state,
                      data=images, evaluate=evaluate)
    for work in member:
        chosen = work.indices
        loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
        loss.backward()
        member.contribute(loss)

    print(f"{'finished' if member.finished else 'left'} after round {member.round}, "
          f"parameters {member.hash():016x}")
    if member.finished:
        torch.save(net.state_dict(), "trained.pt")


if __name__ == "__main__":
    main()
