"""A small transformer that learns the letters of a text, with AdamW and one exchange in 20 steps.

    torchrun --nproc_per_node 2 examples/pytorch/local_steps.py

The text is this repository's README, or any other: `--text FILE`. Each rank reads its own part of it.
"""

import argparse
import pathlib

import torch
import torch.distributed as dist

import dgc

CONTEXT = 64


class Letters(torch.nn.Module):
    def __init__(self, symbols: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(symbols, width)
        self.place = torch.nn.Parameter(torch.zeros(CONTEXT, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(layer, layers)
        self.head = torch.nn.Linear(width, symbols)
        ahead = torch.triu(torch.full((CONTEXT, CONTEXT), float("-inf")), diagonal=1)
        self.register_buffer("ahead", ahead, persistent=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(letters) + self.place, self.ahead))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    readme = pathlib.Path(__file__).resolve().parents[2] / "README.md"
    parser.add_argument("--text", type=pathlib.Path, default=readme)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--local-steps", type=int, default=20)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    text = arguments.text.read_text()
    symbols = sorted(set(text))
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    data = torch.tensor([numbers[symbol] for symbol in text])
    mine = data[len(data) * rank // ranks : len(data) * (rank + 1) // ranks]

    torch.manual_seed(rank)  # each rank draws other batches; LocalSteps broadcasts rank 0's model
    model = Letters(len(symbols))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    local = dgc.LocalSteps(model, optimizer, local_steps=arguments.local_steps)

    sent = 0
    for step in range(arguments.steps):
        begins = torch.randint(len(mine) - CONTEXT - 1, (8,))
        batch = torch.stack([mine[b : b + CONTEXT + 1] for b in begins])
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # this rank's own
        if local.step():
            sent += local.stats.message_bytes
            if rank == 0:
                print(f"round {local.rounds}: loss {loss.item():.3f}, {sent} bytes sent so far")
    if local.local_step > 0:
        local.synchronize()
    local.check_parameters()
    if rank == 0:
        dense = 4 * sum(p.numel() for p in model.parameters()) * arguments.steps
        print(f"gradients of every step in fp32: {dense} bytes, {dense / max(sent, 1):.0f} times as many")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
