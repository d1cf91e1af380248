"""test_docs.py PROJECT: the Python of README.md, docs/pytorch.md and the docstrings runs as it
stands."""

import dataclasses
import inspect
import os
import pathlib
import re
import sys
import tempfile
import textwrap
import unittest

import torch

import dgc
from dgc._options import Options
from workers import run

PROJECT = pathlib.Path(sys.argv[1])
STEPS = 8
PAGES = ("pytorch.md", "multi-node.md", "compare.md", "results.md")


def page(name):
    return (PROJECT / "docs" / name).read_text()


MANUAL = page("pytorch.md")


def anchors(text):
    """Of its headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


def blocks(text, kind="python"):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def snippets():
    """(where it stands, its text) of each one outside docs/pytorch.md."""
    found = [
        ("README.md", text)
        for text in blocks((PROJECT / "README.md").read_text())
        if "dgc." in text
    ]
    for thing in (dgc, dgc.DGCState, dgc.SGD, dgc.hook):
        for text in re.findall(r"::\n\n((?:[ ]+.*\n|\n)+)", inspect.cleandoc(thing.__doc__) + "\n"):
            found.append((thing.__name__, textwrap.dedent(text)))
    return found


def surroundings(rank):
    """What the texts take for granted."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
    chance = torch.Generator().manual_seed(rank)
    loader = [
        (torch.randn(8, 20, generator=chance), torch.randint(5, (8,), generator=chance))
        for _ in range(STEPS)
    ]
    return {
        "torch": torch,
        "dgc": dgc,
        "model": model,
        "loader": loader,
        "rank": rank,
        "steps_per_epoch": STEPS,
        "loss_function": torch.nn.functional.cross_entropy,
        "device": torch.device("cpu"),
        "old_workers": 2,
    }


def make_ddp(names):
    """DDP takes one hook only: where a text goes on to another state, it needs a new one."""
    names["ddp"] = torch.nn.parallel.DistributedDataParallel(names["model"])
    names["optimizer"] = torch.optim.SGD(names["ddp"].parameters(), lr=0.1)


def train(names):
    start = names["state"].step
    exec(blocks(MANUAL)[1], names)
    return names["state"].step - start


def run_snippet(rank, text):
    names = surroundings(rank)
    if "DistributedDataParallel(model)" not in text:
        make_ddp(names)
    exec(text, names)
    return train(names)


def run_manual(rank, folder):
    """Block after block, as a reader would put them together."""
    os.chdir(folder)
    names, done = surroundings(rank), []
    for text in blocks(MANUAL):
        if "DGCState(" in text and "DistributedDataParallel(model)" not in text:
            make_ddp(names)
        exec(text, names)
        if "DGCState(" in text and "register_comm_hook" not in text:
            names["ddp"].register_comm_hook(names["state"], dgc.hook)
        if "DGCState(" in text and "loader" not in text:
            train(names)
        done.append(names["state"].step)
        torch.distributed.barrier()  # files of one block are read in the next
    return done, train(names)


class Docs(unittest.TestCase):
    def test_snippets(self):
        found = snippets()
        self.assertEqual(
            [where for where, _ in found], ["README.md", "dgc", "DGCState", "SGD", "hook"]
        )
        for where, text in found:
            with self.subTest(where=where):
                self.assertIn("optimizer=optimizer", text)
                self.assertEqual(run(run_snippet, text, ranks=2), [STEPS, STEPS])

    def test_manual(self):
        with tempfile.TemporaryDirectory() as folder:
            for done, trained in run(run_manual, folder, ranks=2):
                # Each new state is trained for 8 steps. The loop makes 8 more; accumulation 2, of 4
                # passes each.
                self.assertEqual((done, trained), ([8, 16, 8, 8, 10, 8, 8, 8, 8, 8, 8], STEPS))

    def test_manual_has_every_option(self):
        for option in dataclasses.fields(Options):
            shown = f"| `{option.name}` | {option.default!r} |"
            self.assertIn(shown, MANUAL)

    def test_slurm_script(self):
        script = (PROJECT / "examples" / "pytorch" / "slurm.sh").read_text()
        self.assertEqual(blocks(page("multi-node.md"), "bash"), [script])

    def test_width(self):
        for name in PAGES:
            for number, line in enumerate(page(name).splitlines(), 1):
                # Tables and commands cannot be wrapped.
                if not line.startswith(("|", "    ")):
                    self.assertLessEqual(len(line), 100, f"docs/{name}:{number}")

    def test_links(self):
        """Within these pages and between them."""
        for name in PAGES:
            for target, place in re.findall(r"\]\(([\w.-]*)#([^)]*)\)", page(name)):
                if target == "" or target in PAGES:
                    self.assertIn(place, anchors(page(target or name)), f"docs/{name}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
