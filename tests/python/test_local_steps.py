"""test_local_steps.py [LOCAL_PEER]: dgc.LocalSteps with every kind of optimizer; the same bits as
dgc::LocalSteps on the same gradients."""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import torch

import dgc
from workers import Recorded, caught, flat, gradients_of, run

PEER = sys.argv[1:2]
H = 3
EXACT = {"ratio": 1.0, "values": "fp32", "dense_values": "fp32", "residual_decay": 1.0}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
SHAPES = {"w": (1, 4), "b": (2,)}


def set_gradients(model, rank, step, shapes=Recorded.SHAPES):
    for name, gradient in gradients_of(rank, step, shapes).items():
        getattr(model, name).grad = gradient


class Local:
    """A model with local steps. Other ranks than 0 begin with other parameters."""

    def __init__(self, rank, optimizer="adamw", **options):
        self.rank = rank
        self.model = Recorded(seed=1 + rank)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.local = dgc.LocalSteps(self.model, self.optimizer, **{"local_steps": H, **options})

    def train(self, begin, end):
        done = []
        for step in range(begin, end):
            set_gradients(self.model, self.rank, step)
            done.append(self.local.step())
        return done


def exact(rank, optimizer, options):
    training = Local(rank, optimizer, check_parameters_every=1, **{**EXACT, **options})
    done = training.train(0, 3 * H)
    assert done == [False, False, True] * 3, done
    assert training.local.rounds == 3 and training.local.local_step == 0
    training.local.check_parameters()
    left = sum(training.local.residual(name).abs().sum() for name in Recorded.SHAPES)
    return flat(training.model), float(left)


def averaged(optimizer, ranks, outer_lr, momentum):
    """In one process: each rank's model and optimizer, and the means of what they become."""
    models = [Recorded() for _ in range(ranks)]
    optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    outer = Recorded()
    nesterov = torch.optim.SGD(
        outer.parameters(), lr=outer_lr, momentum=momentum, nesterov=momentum > 0.0
    )
    for step in range(3 * H):
        for rank, (model, inner) in enumerate(zip(models, optimizers)):
            set_gradients(model, rank, step)
            inner.step()
        if (step + 1) % H != 0:
            continue
        with torch.no_grad():
            for p, *all_of_it in zip(outer.parameters(), *(m.parameters() for m in models)):
                mean = sum(one.double() for one in all_of_it) / ranks
                p.grad = (p.double() - mean).float()
            nesterov.step()
            for model in models:
                for p, value in zip(model.parameters(), outer.parameters()):
                    p.copy_(value)
    return flat(outer)


class ByHand(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))


def means(rank, mean, path):
    """One entry of four is sent, and one local step of SGD at rate 1: the change is the gradient."""
    model = ByHand()
    local = dgc.LocalSteps(
        model, torch.optim.SGD(model.parameters(), lr=1.0), local_steps=1, mean=mean, path=path,
        **{**EXACT, "ratio": 0.25, "residual_decay": 0.5},
    )  # fmt: skip
    found = []
    for change, of_b in (
        (([4, 1, 0, 0], [0, 3, -6, 0]), (2.0, 4.0)),
        (([0, 8, 1, 0], [0, 4, 0, 1]), (0.0, 0.0)),
    ):
        model.w.grad = torch.tensor([change[rank]], dtype=torch.float32)
        model.b.grad = torch.full((2,), of_b[rank])
        local.step()
        found += [model.w.flatten().tolist(), local.residual("w").flatten().tolist()]
    return [*found, model.b.tolist()]


def resumed(rank, folder, optimizer, options):
    os.chdir(folder)
    training = Local(rank, optimizer, **options)
    training.train(0, 2 * H)
    training.local.outer_lr = 0.5
    torch.save(training.local.state_dict(), f"rank-{rank}.pt")
    training.train(2 * H, 4 * H)
    expected = flat(training.model), training.local.residual("first")
    other = Local(rank, optimizer, **options)
    other.train(0, H + 1)  # in the middle of a round: it is forgotten
    refused = caught(other.local.state_dict)
    other.local.load_state_dict(torch.load(f"rank-{rank}.pt"))
    assert (other.local.rounds, other.local.local_step) == (2, 0)
    assert other.local.outer_lr == 0.5
    other.train(2 * H, 4 * H)
    actual = flat(other.model), other.local.residual("first")
    return all(torch.equal(a, e) for a, e in zip(actual, expected)), refused


def saved(rank, folder):
    training = Local(rank)
    training.train(0, 2 * H)
    torch.save(training.local.state_dict(), f"{folder}/rank-{rank}.pt")
    return flat(training.model), training.local.residual("first")


def loaded(rank, folder, old):
    everything = [torch.load(f"{folder}/rank-{r}.pt") for r in range(old)]
    training = Local(rank)
    training.local.load_state_dict(everything)
    before = flat(training.model), training.local.residual("first")
    assert training.optimizer.state_dict()["state"], "a new rank goes on with moments"
    training.train(2 * H, 3 * H)
    return (*before, flat(training.model))


def failing(rank):
    """One rank's change is NaN in the second round."""
    training = Local(rank, "sgd", ratio=0.01)
    training.train(0, H)
    before = flat(training.model)
    training.train(H, 2 * H - 1)
    set_gradients(training.model, rank, 0)
    if rank == 1:
        training.model.second.grad[3, 4] = float("nan")
    texts = [caught(training.local.step)]
    texts += [caught(training.local.step), caught(training.local.synchronize)]
    return texts, torch.equal(flat(training.model), before), training.local.rounds


def uneven(rank):
    """The data of rank 1 ends early."""
    training = Local(rank, "sgd", **EXACT)
    done = training.train(0, H if rank == 0 else 1)
    texts = []
    if rank == 1:
        texts.append(caught(training.local.check_parameters))
        training.local.synchronize()
    training.local.check_parameters()
    return done, texts, flat(training.model)


class Mixed(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.short = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.float16))
        self.brain = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
        self.turned = torch.nn.Parameter(torch.full((8, 4), 1.0 + rank).t())
        self.fixed = torch.nn.Parameter(torch.full((3,), float(rank)), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.full((3, 3), float(rank)))
        self.register_buffer("seen", torch.full((2,), float(rank)))


def mixed(rank):
    model = Mixed(rank)
    trained = [model.short, model.brain, model.turned]
    local = dgc.LocalSteps(model, torch.optim.SGD(trained, lr=0.25), local_steps=2, **EXACT)
    start = [model.fixed.tolist(), model.unused[0].tolist(), model.seen.tolist()]
    for _ in range(4):
        for p in trained:
            p.grad = torch.full_like(p, 0.5 if rank == 0 else 1.5)
        local.step()
    model.seen.fill_(rank)
    local.sync_buffers()
    ends = [bool((p == 0).all()) for p in trained]
    return start, ends, model.seen.tolist(), local.report(), repr(local)


def refusals(rank):
    model = Recorded()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    both = torch.optim.SGD([*model.parameters(), torch.zeros(2, requires_grad=True)], lr=0.1)
    ddp = torch.nn.parallel.DistributedDataParallel(Recorded())
    local = dgc.LocalSteps(model, sgd)
    make = dgc.LocalSteps
    cases = [
        ("local_steps", lambda: make(model, sgd, local_steps=0)),
        ("outer_lr", lambda: make(model, sgd, outer_lr=-1.0)),
        ("outer_momentum", lambda: make(model, sgd, outer_momentum=0.9)),
        ("residual_decay", lambda: make(model, sgd, residual_decay=0.0)),
        ("residual_decay", lambda: make(model, sgd, residual_decay=1.5)),
        ("mean", lambda: make(model, sgd, mean="median")),
        ("senders", lambda: make(model, sgd, mean="senders", algorithm="owner")),
        ("values", lambda: make(model, sgd, values="table3")),
        ("schedule", lambda: make(model, sgd, ratio=0.5, schedule="0.1")),
        ("an optimizer of PyTorch", lambda: make(model, "adam")),
        ("none of these parameters", lambda: make(model, torch.optim.SGD([model.bias.detach()], lr=1.0))),
        ("is not one of the parameters", lambda: make(model, other)),
        ("parameter 5 of group 0", lambda: make(model, both)),
        ("DistributedDataParallel", lambda: make(ddp, sgd)),
        ("outer_lr", lambda: setattr(local, "outer_lr", "fast")),
        ("name", lambda: local.residual("third")),
        ("state_dict()", lambda: local.load_state_dict({"step": 1})),
        ("state_dict()", lambda: local.load_state_dict([])),
    ]  # fmt: skip
    return [(wanted, caught(work)) for wanted, work in cases]


def different(rank):
    model = Recorded()
    local = dgc.LocalSteps(model, OPTIMIZERS["sgd"](model.parameters()), local_steps=1 + rank)
    return caught(local.synchronize)


def with_peer(rank, folder, steps, options):
    """Gradients are written for C++, and what became of them is returned."""
    model = ByRecord()
    local = dgc.LocalSteps(
        model, torch.optim.SGD(model.parameters(), lr=0.05), local_steps=2, **options
    )
    with open(f"{folder}/gradients.{rank}", "wb") as file:
        for step in range(steps):
            for name, gradient in gradients_of(rank, step, RECORDED).items():
                getattr(model, name).grad = gradient
                numbers = gradient.flatten().tolist()
                file.write(struct.pack(f"<{len(numbers)}f", *numbers))
            local.step()
    return flat(model), {name: local.residual(name).flatten() for name in RECORDED}


RECORDED = {"first": (60, 50), "bias": (60,), "third": (200, 100)}


class ByRecord(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in RECORDED.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))


class LocalSteps(unittest.TestCase):
    def test_a_round_at_ratio_one_is_averaging(self):
        for optimizer in OPTIMIZERS:
            expected = averaged(optimizer, 2, 1.0, 0.0)
            with self.subTest(optimizer=optimizer):
                results = run(exact, optimizer, {}, ranks=2)
                torch.testing.assert_close(results[0][0], expected, rtol=1e-5, atol=1e-6)
                self.assertTrue(torch.equal(results[0][0], results[1][0]))
                self.assertEqual(results[0][1], 0.0)

    def test_the_outer_rate_counts_once(self):
        expected = averaged("adamw", 2, 0.5, 0.0)
        for options in ({}, {"path": "torch"}, {"algorithm": "owner"}):
            with self.subTest(**options):
                results = run(exact, "adamw", {"outer_lr": 0.5, **options}, ranks=2)
                torch.testing.assert_close(results[0][0], expected, rtol=1e-5, atol=1e-6)

    def test_diloco(self):
        expected = averaged("adamw", 2, 0.7, 0.9)
        options = {"outer_lr": 0.7, "outer_momentum": 0.9}
        results = run(exact, "adamw", options, ranks=2)
        torch.testing.assert_close(results[0][0], expected, rtol=1e-5, atol=1e-6)
        self.assertTrue(torch.equal(results[0][0], results[1][0]))

    def test_means(self):
        for path in ("core", "torch"):
            for mean, theta in (("workers", [-2, 0, 3, 0]), ("senders", [-4, 0, 6, 0])):
                with self.subTest(mean=mean, path=path):
                    first, second = run(means, mean, path, ranks=2)
                    self.assertEqual(first[0], theta)
                    self.assertEqual((first[1], second[1]), ([0, 0.5, 0, 0], [0, 1.5, 0, 0]))
                    # Both sent the second entry: half of what had waited, and half of the change.
                    self.assertEqual(first[2][1], -7.0)
                    self.assertEqual((first[3], second[3]), ([0, 0, 0.5, 0], [0, 0, 0, 0.5]))
                    self.assertEqual(first[4], [-3.0, -3.0])
                    self.assertEqual(first[2], second[2])

    def test_goes_on_bit_for_bit(self):
        diloco = {**EXACT, "outer_momentum": 0.9}
        for optimizer in OPTIMIZERS:
            for options in ({"ratio": 0.05}, diloco):
                with self.subTest(optimizer=optimizer), tempfile.TemporaryDirectory() as folder:
                    for same, refused in run(resumed, folder, optimizer, options, ranks=2):
                        self.assertTrue(same)
                        self.assertIn("1 local steps were made", refused)

    def test_another_number_of_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            old = run(saved, folder, ranks=2)
            new = run(loaded, folder, 2, ranks=4)
            for parameters, _, _ in new:
                self.assertTrue(torch.equal(parameters, old[0][0]))
            torch.testing.assert_close(sum(r[1] for r in new), sum(r[1] for r in old))
            self.assertTrue(all(torch.equal(r[2], new[0][2]) for r in new))

    def test_a_round_that_fails_is_taken_back(self):
        for texts, same, rounds in run(failing, ranks=2):
            self.assertIn("'second'", texts[0])
            self.assertIn("nan", texts[0])
            self.assertIn("failed before", texts[1])
            self.assertIn("failed before", texts[2])
            self.assertTrue(same, "theta is theta0 again")
            self.assertEqual(rounds, 1)

    def test_different_numbers_of_steps(self):
        (first, _, ours), (second, texts, theirs) = run(uneven, ranks=2)
        self.assertEqual((first, second), ([False, False, True], [False]))
        self.assertIn("1 local steps were made", texts[0])
        self.assertTrue(torch.equal(ours, theirs))

    def test_types_and_layouts(self):
        for start, ends, seen, report, text in run(mixed, ranks=2):
            self.assertEqual(start, [[0.0] * 3, [0.0] * 3, [0.0] * 2])
            self.assertEqual(ends, [True, True, True])
            self.assertEqual(seen, [0.5, 0.5])
            self.assertNotIn("unused", report)
            self.assertEqual(text, "LocalSteps(<3 tensors>, <round 2>, local_steps=2)")

    def test_refusals(self):
        for wanted, text in run(refusals, ranks=2)[0]:
            self.assertTrue(str(text).startswith("Error: "), text)
            self.assertIn(wanted, str(text))
            self.assertNotIn("DGCState", str(text))
        for text in run(different, ranks=2):
            self.assertIn("local_steps", text)

    @unittest.skipUnless(PEER, "libtorch is not compiled in")
    def test_the_same_bits_as_in_cpp(self):
        cases = (
            {"values": "table2"},
            {"values": "table4", "mean": "senders"},
            {"values": "table2", "path": "torch"},
            {"values": "fp16", "mean": "senders", "path": "torch", "outer_lr": 0.7},
            {"values": "int8", "algorithm": "owner"},
            {**EXACT, "outer_momentum": 0.9, "outer_lr": 0.7},
        )
        for options in cases:
            with self.subTest(**options), tempfile.TemporaryDirectory() as name:
                self.compare(pathlib.Path(name), {"ratio": 0.02, "residual_decay": 0.9, **options})

    def compare(self, folder, options):
        lines = [" ".join([name, *map(str, shape)]) for name, shape in RECORDED.items()]
        (folder / "model.txt").write_text("\n".join(lines) + "\n")
        steps = 12
        results = run(with_peer, str(folder), steps, options, ranks=2)
        names = ("ratio", "values", "dense_values", "residual_decay", "mean", "algorithm")
        usual = {"dense_values": "table2", "mean": "workers", "algorithm": "allgather"}
        how = [str({**usual, **options}[name]) for name in names]
        how += [str(options.get("outer_lr", 1.0)), str(options.get("outer_momentum", 0.0))]
        subprocess.run([PEER[0], str(folder), "2", str(steps), *how], check=True)
        ours = results[0][0]
        theirs = floats(folder / "parameters")
        self.assertTrue(torch.equal(ours, theirs), (ours - theirs).abs().max())
        self.assertGreater(float(ours.abs().sum()), 0.0)
        for rank, (_, residuals) in enumerate(results):
            whole = torch.cat(list(residuals.values()))
            self.assertTrue(torch.equal(whole, floats(folder / f"residual.{rank}")), rank)


def floats(file):
    return torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
