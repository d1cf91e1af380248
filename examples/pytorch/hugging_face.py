#!/usr/bin/env python3
"""Trains a small GPT-2 with the Trainer of Hugging Face and Deep Gradient Compression.

    torchrun --nproc_per_node 2 examples/pytorch/hugging_face.py

Nothing is downloaded: the model comes from a configuration, and the text from the Debian package
bible-kjv. `--text FILE` takes another text. Tokens are bytes.
"""

import argparse
import subprocess
import tempfile

import dgc
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

LENGTH = 64


class Text(torch.utils.data.Dataset):
    """Pieces of LENGTH bytes."""

    def __init__(self, data):
        self.pieces = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
        self.pieces = self.pieces[: len(data) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


class Compression(TrainerCallback):
    """Gives the hook to DDP when the Trainer has made it, and shows how training goes on."""

    trainer = None

    def on_train_begin(self, args, state, control, **kwargs):
        ddp, optimizer = self.trainer.model_wrapped, self.trainer.optimizer
        self.state = dgc.DGCState(ddp, optimizer=optimizer, momentum=0.9, clip_norm=1.0,
                                  warmup=args.max_steps // 4)
        ddp.register_comm_hook(self.state, dgc.hook)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.3f} "
                  f"message_ratio {self.state.stats.message_ratio:.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a file; by default what `bible` prints")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if options.text:
        with open(options.text, "rb") as file:
            data = file.read()
    else:
        data = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, check=True).stdout

    transformers.set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=2,
                                       n_head=4, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # no momentum: the state has it
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    compression = Compression()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(folder, max_steps=options.steps, per_device_train_batch_size=16,
                              logging_steps=max(1, options.steps // 10), save_strategy="no",
                              max_grad_norm=0.0,  # clipping is with the state: clip_norm
                              use_cpu=True, ddp_backend="gloo", ddp_find_unused_parameters=False,
                              disable_tqdm=True),
            train_dataset=Text(data), optimizers=(optimizer, scheduler), callbacks=[compression])
        trainer.remove_callback(transformers.PrinterCallback)
        compression.trainer = trainer
        trainer.train()


if __name__ == "__main__":
    main()
