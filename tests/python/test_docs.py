"""test_docs.py PROJECT: the Python of README.md, docs/pytorch.md and the docstrings runs as it
stands."""

import copy
import dataclasses
import doctest
import inspect
import os
import pathlib
import re
import sys
import tempfile
import textwrap
import unittest
import warnings

import torch

import dgc
from dgc._options import Options
from versions import HAS_COMPILE, HAS_DCP, HAS_FSDP2, WITHOUT_DCP, WITHOUT_FSDP2
from versions import as_this_version_has_it, is_newer
from workers import run

PROJECT = pathlib.Path(sys.argv[1])
STEPS = 8
PAGES = ("pytorch.md", "multi-node.md", "compare.md", "results.md", "hub.md")


def page(name):
    return (PROJECT / "docs" / name).read_text()


MANUAL = page("pytorch.md")


def anchors(text):
    """Of its headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


def blocks(text, kind="python"):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def public():
    """What users import, but for the version."""
    return [getattr(dgc, name) for name in dgc.__all__ if name != "__version__"]


# Tests of their own run these: FSDP2 on four ranks here, and members of a hub in test_join.py.
ELSEWHERE = {dgc.ShardedState, dgc.join, dgc.Member, dgc.Work}


def snippets():
    """(where it stands, its text) of each one outside docs/pytorch.md."""
    found = [
        ("README.md", text)
        for text in blocks((PROJECT / "README.md").read_text())
        if "dgc." in text and not of_hub(text)
    ]
    found += [
        ("python/README.md", text)
        for text in blocks((PROJECT / "python/README.md").read_text())
        if not of_hub(text)
    ]
    for thing in (dgc, *public()):
        if thing not in ELSEWHERE:
            found += [(thing.__name__, text) for text in examples_of(thing)]
    return found


def of_hub(text):
    return "dgc.join(" in text or " in member:" in text


def examples_of(thing):
    """Of a docstring."""
    found = re.findall(r"::\n\n((?:[ ]+.*\n|\n)+)", inspect.cleandoc(thing.__doc__) + "\n")
    return [textwrap.dedent(text) for text in found]


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
        "workers": torch.distributed.get_world_size(),
    }


def make_ddp(names):
    """DDP takes one hook only: where a text goes on to another state, it needs a new one."""
    names["ddp"] = torch.nn.parallel.DistributedDataParallel(names["model"])
    names["optimizer"] = torch.optim.SGD(names["ddp"].parameters(), lr=0.1)


def train(names):
    start = names["state"].step
    exec(blocks(MANUAL)[1], names)
    return names["state"].step - start


def makes_ddp(text):
    return "DistributedDataParallel(" in text


def run_snippet(rank, text):
    names = surroundings(rank)
    if not makes_ddp(text):
        make_ddp(names)
    if "DGCState(" not in text:  # it looks at one that has trained
        names["state"] = dgc.DGCState(names["ddp"], optimizer=names["optimizer"])
        names["ddp"].register_comm_hook(names["state"], dgc.hook)
        train(names)
    exec(text, names)
    return train(names)


def run_sharded(rank, text, names=None):
    """The model is then sharded for good."""
    names = names or surroundings(rank)
    names["model"] = copy.deepcopy(names["model"])
    exec(text, names)
    names["ddp"] = names["model"]
    return train(names)


def run_checkpoint(rank, folder, save, load):
    os.chdir(folder)
    names = surroundings(rank)
    make_ddp(names)
    exec(examples_of(dgc.DGCState)[0], names)
    train(names)
    exec(save, names)
    old = names["state"].state_dict()
    train(names)
    exec(load, names)
    new = names["state"].state_dict()
    return new["step"], torch.equal(old["residual"]["0.weight"], new["residual"]["0.weight"])


def run_manual(rank, folder):
    """Block after block, as a reader would put them together."""
    os.chdir(folder)
    names, done = surroundings(rank), []
    warnings.filterwarnings("error", category=FutureWarning, module="<string>")
    for text in map(as_this_version_has_it, blocks(MANUAL)):
        if of_hub(text):
            continue
        if is_newer(text):
            done.append(None)
            continue
        if "fully_shard" in text:
            done.append(run_sharded(rank, text, dict(names)))
            continue
        if "DGCState(" in text and not makes_ddp(text):
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
            [where for where, _ in found],
            [
                "README.md",
                "python/README.md",
                "dgc",
                "DGCState",
                "LocalSteps",
                "SGD",
                "StepStats",
                "hook",
            ],
        )
        for where, text in found:
            with self.subTest(where=where):
                if "DGCState(" in text:
                    self.assertIn("optimizer=optimizer", text)
                self.assertEqual(run(run_snippet, text, ranks=2), [STEPS, STEPS])

    def test_examples(self):
        """Each public name has an example: one that another test runs, or a session with >>>."""
        shown = {where for where, _ in snippets()} | {thing.__name__ for thing in ELSEWHERE}
        for thing in public():
            name = thing.__name__
            session = doctest.DocTestParser().get_doctest(
                inspect.getdoc(thing), {"dgc": dgc}, name, name, 0
            )
            self.assertEqual(bool(session.examples), name not in shown, name)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            self.assertEqual(runner.run(session).failed, 0, name)

    def test_manual(self):
        with tempfile.TemporaryDirectory() as folder:
            for done, trained in run(run_manual, folder, ranks=2):
                # Each new state is trained for 8 steps. The loop makes 8 more; accumulation 2, of 4
                # passes each.
                compiled, sharded = 8 if HAS_COMPILE else None, 8 if HAS_FSDP2 else None
                saved = [8, 8] if HAS_DCP else [None, None]
                expected = [8, 16, 8, 8, 8, 8, 10, 8, 8, 8, compiled, sharded, 8, 8, 8, 8, *saved]
                self.assertEqual((done, trained), (expected, STEPS))

    @unittest.skipUnless(HAS_FSDP2, WITHOUT_FSDP2)
    def test_sharded(self):
        (text,) = examples_of(dgc.ShardedState)
        self.assertEqual(run(run_sharded, text), [STEPS] * 4)

    @unittest.skipUnless(HAS_DCP, WITHOUT_DCP)
    def test_distributed_checkpoint(self):
        (save,), (load,) = (examples_of(m) for m in (dgc.DGCState.to_dcp, dgc.DGCState.from_dcp))
        with tempfile.TemporaryDirectory() as folder:
            results = run(run_checkpoint, folder, save, load, ranks=2)
            self.assertEqual(results, [(STEPS, True)] * 2)

    def test_hugging_face_script(self):
        script = (PROJECT / "examples" / "pytorch" / "hugging_face.py").read_text()
        (callback,) = re.findall(r"    def on_train_begin.*?dgc\.hook\)\n", script, re.DOTALL)
        self.assertIn(textwrap.indent(callback, "    "), MANUAL)

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
