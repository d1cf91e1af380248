"""What goes wrong is said on every rank, and costs nothing that was accumulated."""

import copy
import os
import pathlib
import pickle
import subprocess
import sys
import unittest
import warnings

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import dgc
import dgc._core as core
from workers import Recorded, flat, gradients_of, run


def caught(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def nonfinite(rank, path, clip=None):
    """An Inf on rank 2, at step 1, in one tensor."""
    model = Recorded()
    ddp = DDP(model, bucket_cap_mb=0.001)
    state = dgc.DGCState(ddp, ratio=0.05, path=path, clip_norm=clip)
    ddp.register_comm_hook(state, dgc.hook)
    ddp(gradients_of(rank, 0)).backward()
    ddp.zero_grad(set_to_none=True)
    bad = gradients_of(rank, 1)
    if rank == 2:
        bad["conv"][1, 2, 0, 1] = float("inf")
    first = caught(lambda: ddp(bad).backward())
    second = caught(lambda: ddp(gradients_of(rank, 2)).backward())
    saved = state.state_dict()
    finite = all(torch.isfinite(t).all() for part in ("velocity", "residual") for t in saved[part].values())
    return first, second, finite, state.step


class Scaler:
    """torch.cuda.amp.GradScaler's rules, which PyTorch 1.13 has for CUDA only."""

    def __init__(self, scale):
        self._scale, self.skipped = scale, 0

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return loss * self._scale

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for g in gradients:
            g.div_(self._scale)
        if all(torch.isfinite(g).all() for g in gradients):
            optimizer.step()
        else:
            self.skipped += 1
            self._scale /= 2


def scaled(rank, use_scaler, bad_steps, clip, path, nonfinite=None):
    model = Recorded()
    ddp = DDP(model, bucket_cap_mb=0.001)
    scaler = Scaler(1024.0) if use_scaler else None
    optimizer = dgc.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    state = dgc.DGCState(ddp, momentum=0.9, ratio=0.05, clip_norm=clip, scaler=scaler, optimizer=optimizer, path=path,
                         nonfinite=nonfinite if use_scaler else "skip")
    ddp.register_comm_hook(state, dgc.hook)
    skips = []
    for step in range(8):
        optimizer.zero_grad()
        gradients = gradients_of(rank, step)
        if step in bad_steps and rank == 1:
            gradients["second"][3, 4] = float("nan")
        before = state.state_dict()
        loss = ddp(gradients)
        (scaler.scale(loss) if use_scaler else loss).backward()
        if step in bad_steps:
            after = state.state_dict()
            assert all(torch.equal(before[part][n], after[part][n]) for part in ("velocity", "residual") for n in before[part])
            assert before["step"] == after["step"] and state.stats.skipped
        skips.append(state.skipped)
        scaler.step(optimizer) if use_scaler else optimizer.step()
        if use_scaler and nonfinite == "error":
            scaler._scale *= 2.0  # residuals of a step must not carry its scale into the next
    return flat(model), skips, scaler.skipped if use_scaler else None


def without_bad_steps(rank, good_steps):
    model = Recorded()
    ddp = DDP(model)
    optimizer = dgc.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    ddp.register_comm_hook(dgc.DGCState(ddp, ratio=0.05, optimizer=optimizer), dgc.hook)
    for step in good_steps:
        optimizer.zero_grad()
        ddp(gradients_of(rank, step)).backward()
        optimizer.step()
    return flat(model)


def differing(rank, name, values):
    ddp = DDP(Recorded())
    ddp.register_comm_hook(dgc.DGCState(ddp, **{name: values[rank]}), dgc.hook)
    return caught(lambda: ddp(gradients_of(rank, 0)).backward())


def diverged(rank):
    model = Recorded()
    ddp = DDP(model, broadcast_buffers=False)
    state = dgc.DGCState(ddp, check_parameters_every=2)
    ddp.register_comm_hook(state, dgc.hook)
    for step in range(3):
        if step == 1 and rank == 1:
            with torch.no_grad():
                model.conv[0, 0, 0, 0] += 1.0
        ddp.zero_grad()
        error = caught(lambda: ddp(gradients_of(rank, step)).backward())
        if error:
            return step, error
    return None


def killed(rank):
    """Rank 1 leaves in the middle."""
    ddp = DDP(Recorded())
    state = dgc.DGCState(ddp, ratio=0.05)
    ddp.register_comm_hook(state, dgc.hook)
    for step in range(2):  # DDP has collectives of its own in the second
        ddp(gradients_of(rank, step)).backward()
    if rank == 1:
        os._exit(0)
    before = state.step
    error = caught(lambda: ddp(gradients_of(rank, 2)).backward())
    good = error is not None and "all-gather: step 2" in error and state.step == before
    if not good:
        print(f"rank {rank}: {error}", file=sys.stderr)
    os._exit(0 if good else 1)


def interrupted(rank):
    """Backward raises after some buckets were sent; a new DDP tries again with the same state."""
    model = Recorded()
    ddp = DDP(model, bucket_cap_mb=0.001)
    state = dgc.DGCState(ddp, ratio=0.05)
    ddp.register_comm_hook(state, dgc.hook)
    for step in range(2):
        ddp(gradients_of(rank, step)).backward()

    saved = state.state_dict()

    def fail(gradient):
        raise KeyError("a mistake of the user's")

    handle = model.first.register_hook(fail)
    assert "a mistake" in caught(lambda: ddp(gradients_of(rank, 2)).backward())
    handle.remove()
    again = DDP(copy.deepcopy(model))
    state.attach(again)
    again.register_comm_hook(state, dgc.hook)
    error = caught(lambda: again(gradients_of(rank, 2)).backward())
    # What the error says helps, and at once: the state is what was loaded, and the step goes well.
    fresh = DDP(copy.deepcopy(model))
    state.load_state_dict(saved)
    loaded = state.state_dict()
    state.attach(fresh)
    fresh.register_comm_hook(state, dgc.hook)
    fresh(gradients_of(rank, 2)).backward()
    same = all(torch.equal(saved[part][n], loaded[part][n]) for part in ("velocity", "residual") for n in saved[part])
    return error, same, state.step


def pickled_scaler(rank):
    """A state that had a scaler is of no use without."""
    model = Recorded()
    state = pickle.loads(pickle.dumps(dgc.DGCState(model, scaler=Scaler(1024.0))))
    ddp = DDP(model)
    state.attach(model)
    ddp.register_comm_hook(state, dgc.hook)
    error = caught(lambda: ddp(gradients_of(rank, 0)).backward())
    state.attach(model, scaler=Scaler(1024.0))
    again = DDP(copy.deepcopy(model))
    state.attach(again)
    again.register_comm_hook(state, dgc.hook)
    again(gradients_of(rank, 0)).backward()
    return error, state.step


def construct(rank):
    """What is refused at once."""
    model = Recorded()
    parameters = list(model.parameters())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dgc.DGCState(model, optimizer=torch.optim.SGD(parameters, lr=0.1, weight_decay=1e-4))
    assert len(warned) == 1 and "dgc.SGD" in str(warned[0].message), warned
    dgc.DGCState(model, optimizer=torch.optim.SGD(parameters, lr=0.1))
    dgc.DGCState(model.named_parameters(), optimizer=dgc.SGD(parameters, lr=0.1, momentum=0.9))
    refused = {
        "momentum of its own": lambda: dgc.DGCState(model, optimizer=torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        "Adam has momentum": lambda: dgc.DGCState(model, optimizer=torch.optim.Adam(parameters)),
        "give both the same": lambda: dgc.DGCState(model, optimizer=dgc.SGD(parameters, lr=0.1, momentum=0.5)),
        "not in (0, 1]": lambda: dgc.DGCState(model, ratio=2.0),
        "fp32, fp16, bf16, int8, sign": lambda: dgc.DGCState(model, values="fp8"),
        "momentum: 1 is not in [0, 1)": lambda: dgc.DGCState(model, momentum=1.0),
        "nesterov: needs a momentum": lambda: dgc.DGCState(model, momentum=0.0, nesterov=True),
        "clip_norm": lambda: dgc.DGCState(model, clip_norm=-1.0),
        "no ratio and no warmup": lambda: dgc.DGCState(model, schedule="0.001", warmup=5),
        "how long a stage lasts": lambda: dgc.DGCState(model, schedule="0.25,0.001"),
        "none requires a gradient": lambda: dgc.DGCState([]),
        "is torch.float64": lambda: dgc.DGCState(Recorded().double()),
        "no parameter that is trained has this name": lambda: dgc.DGCState(model, dense=["third"]),
        "path 'gpu'": lambda: dgc.DGCState(model, path="gpu"),
        "nonfinite 'ignore'": lambda: dgc.DGCState(model, nonfinite="ignore"),
        "was given what rank 5 of 9 saved": lambda: dgc.DGCState(model).load_state_dict({**dgc.DGCState(model).state_dict(), "rank": 5, "workers": 9}),
        "'first' is [60, 50] here and [2] in": lambda: dgc.DGCState(model).load_state_dict({**dgc.DGCState(model).state_dict(), "shapes": {"first": [2]}}),
    }
    for text, attempt in refused.items():
        error = caught(attempt)
        wanted = text.replace("'first' is", "'first': is")
        assert error and error.startswith("Error: ") and wanted in error, (wanted, error)
    report = dgc.DGCState(model, warmup=([0.25], 100), dense=["conv"]).report()
    for text in ("conv    8x4x3x3  dense   288", "asked for", "fewer than two dimensions", "steps 0 to 99: ratio 0.25", "overlap with backward: on"):
        assert text in report, (text, report)
    assert "overlap with backward: off: clipping" in dgc.DGCState(model, clip_norm=1.0).report()


class Errors(unittest.TestCase):
    def test_nonfinite_names_tensor_step_and_rank_everywhere(self):
        # With clipping all buckets wait for the last.
        for path, clip in (("core", None), ("torch", None), ("core", 1e9)):
            with self.subTest(path=path, clip=clip):
                for first, second, finite, step in run(nonfinite, path, clip):
                    self.assertIn("Error: compress: 'conv': inf at index 55, step 1, rank 2", first)
                    self.assertIn("failed before", second)
                    self.assertTrue(finite)
                    self.assertEqual(step, 1)

    def test_loss_scaling(self):
        expected = run(without_bad_steps, [0, 1, 3, 4, 5, 7])[0]
        for use_scaler, path in ((True, "core"), (True, "torch"), (False, "core")):
            with self.subTest(scaler=use_scaler, path=path):
                results = run(scaled, use_scaler, (2, 6), None, path)
                for parameters, skips, skipped in results:
                    self.assertEqual([step for step, s in enumerate(skips) if s], [2, 6])
                    self.assertEqual(skipped, 2 if use_scaler else None)
                    torch.testing.assert_close(parameters, expected, rtol=1e-6, atol=1e-6)
                    self.assertTrue(torch.equal(parameters, results[0][0]))

    def test_gradients_are_unscaled_where_nothing_is_skipped(self):
        one, other = (run(scaled, use_scaler, (), None, "core", "error")[0][0] for use_scaler in (True, False))
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    def test_clip_is_of_unscaled_gradients(self):
        one, other = (run(scaled, use_scaler, (), 88.0, "core")[0][0] for use_scaler in (True, False))
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    def test_options_that_differ(self):
        for name, values, says in (("ratio", (0.001, 0.01), "ratio 0.01"), ("momentum", (0.9, 0.8), 'has "momentum 0.8" where rank 0 has "momentum 0.9"')):
            for error in run(differing, name, values, ranks=2):
                self.assertIn("rank 1", error)
                self.assertIn(says, error)

    def test_replicas_that_differ(self):
        for step, error in run(diverged, ranks=2):
            self.assertEqual(step, 2)
            self.assertIn("rank 1: has other parameters than rank 0 at step 2", error)

    def test_a_rank_that_dies(self):
        # Its own exit comes before the results are written: the survivors' exit codes tell.
        with self.assertRaises(FileNotFoundError):
            run(killed, ranks=3)

    def test_a_backward_that_was_interrupted(self):
        for error, same, step in run(interrupted, ranks=2):
            self.assertIn("step 2: backward ended in the middle of this step", error)
            self.assertTrue(same)
            self.assertEqual(step, 3)

    def test_a_pickled_state_wants_its_scaler(self):
        for error, step in run(pickled_scaler, ranks=2):
            self.assertIn("scaler: this state had one before it was pickled", error)
            self.assertEqual(step, 1)

    def test_construction(self):
        run(construct, ranks=1)

    def test_parts_of_errors(self):
        with self.assertRaises(dgc.Error) as raised:
            dgc.Schedule(0.0)
        error = raised.exception
        self.assertEqual((error.code, error.operation, error.subject), ("invalid_argument", "schedule", "ratio 0"))
        self.assertEqual(str(error), f"{error.operation}: {error.subject}: {error.problem} ({error.hint})")
        with self.assertRaisesRegex(dgc.Error, "^decode|^message|truncated|bytes"):
            dgc.inspect_message(b"DGCM")
        with self.assertRaisesRegex(dgc.Error, "process group"):
            dgc.DGCState(Recorded())

    def test_extension_links_no_framework(self):
        needed = subprocess.run(["ldd", core.__file__], capture_output=True, text=True, check=True).stdout
        for library in ("torch", "c10", "gloo", "mpi", "python"):
            self.assertNotIn(f"lib{library}", needed)
        self.assertTrue((pathlib.Path(dgc.__file__).parent / "py.typed").exists())


if __name__ == "__main__":
    unittest.main()
