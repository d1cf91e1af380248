"""What goes wrong during training is said on every rank, and costs nothing that was accumulated."""

import copy
import datetime
import functools
import os
import pathlib
import pickle
import subprocess
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import dgc
import dgc._core as core
from versions import NO_BUFFERS
from workers import Recorded, Training, caught, flat, gradients_of, run, same_parts

SMALL_BUCKETS = {"bucket_cap_mb": 0.001}


def decaying(parameters):
    return dgc.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def nonfinite(rank, path, clip=None):
    """An Inf on rank 2, at step 1, in one tensor."""
    training = Training(ddp=SMALL_BUCKETS, set_to_none=True, ratio=0.05, path=path, clip_norm=clip)
    training.backward(gradients_of(rank, 0))
    bad = gradients_of(rank, 1)
    if rank == 2:
        bad["conv"][1, 2, 0, 1] = float("inf")
    first = caught(lambda: training.backward(bad))
    second = caught(lambda: training.ddp(gradients_of(rank, 2)).backward())
    saved = training.state.state_dict()
    finite = all(
        torch.isfinite(t).all() for part in ("velocity", "residual") for t in saved[part].values()
    )
    return first, second, finite, training.state.step, training.state._failure.code


class Scaler:
    """GradScaler's rules, which PyTorch 1.13 has for CUDA only."""

    def __init__(self, scale):
        self._scale, self.skipped = scale, 0

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return loss * self._scale

    def step(self, optimizer):
        gradients = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        for g in gradients:
            g.div_(self._scale)
        if all(torch.isfinite(g).all() for g in gradients):
            optimizer.step()
        else:
            self.skipped += 1
            self._scale /= 2


def scaled(rank, use_scaler, bad_steps, clip, path, nonfinite=None):
    scaler = Scaler(1024.0) if use_scaler else None
    training = Training(
        ddp=SMALL_BUCKETS,
        optimizer=decaying,
        ratio=0.05,
        clip_norm=clip,
        scaler=scaler,
        path=path,
        nonfinite=nonfinite if use_scaler else "skip",
    )
    state, optimizer, skips = training.state, training.optimizer, []
    for step in range(8):
        gradients = gradients_of(rank, step)
        if step in bad_steps and rank == 1:
            gradients["second"][3, 4] = float("nan")
        before = state.state_dict()
        optimizer.zero_grad()
        loss = training.ddp(gradients)
        (scaler.scale(loss) if use_scaler else loss).backward()
        if step in bad_steps:
            after = state.state_dict()
            assert same_parts(before, after)
            assert before["step"] == after["step"] and state.stats.skipped
        skips.append(state.skipped)
        scaler.step(optimizer) if use_scaler else optimizer.step()
        if use_scaler and nonfinite == "error":
            scaler._scale *= 2.0  # residuals of a step must not carry its scale into the next
    return flat(training.model), skips, scaler.skipped if use_scaler else None


def without_bad_steps(rank, good_steps):
    training = Training(optimizer=decaying, ratio=0.05)
    for step in good_steps:
        training.step(gradients_of(rank, step))
    return flat(training.model)


def differing(rank, name, values):
    training = Training(**{name: values[rank]})
    return caught(lambda: training.backward(gradients_of(rank, 0)))


def diverged(rank, every, at):
    """Rank 1 changes a parameter before step `at`. Which step finds it, and what it says."""
    training = Training(ddp=NO_BUFFERS, check_parameters_every=every)
    for step in range(5):
        if step == at and rank == 1:
            with torch.no_grad():
                training.model.conv[0, 0, 0, 0] += 1.0
        error = caught(lambda: training.backward(gradients_of(rank, step)))
        if error:
            return step, error
    return None


def killed(rank, algorithm):
    """Rank 1 leaves in the middle."""
    training = Training(ratio=0.05, algorithm=algorithm)
    for step in range(2):  # DDP has collectives of its own in the second
        training.backward(gradients_of(rank, step))
    if rank == 1:
        os._exit(0)
    error = caught(lambda: training.backward(gradients_of(rank, 2)))
    return error, training.state.step


def stopped(rank, folder):
    """Rank 1 does not go on before rank 0 has given up. The group waits for two seconds."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
    training = Training(ddp={"process_group": group, **NO_BUFFERS}, process_group=group, ratio=0.05)
    for step in range(2):
        training.step(gradients_of(rank, step))
    told, error = pathlib.Path(folder, "told"), None
    if rank == 0:
        error = caught(lambda: training.backward(gradients_of(rank, 2)))
        told.touch()
    while not told.exists():
        time.sleep(0.05)
    return error, training.state.step


def momentum_comes_later(rank, make):
    """OneCycleLR gives SGD a momentum, unless it is told not to."""
    training = Training(optimizer=make, ratio=0.05)
    training.step(gradients_of(rank, 0))
    torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 0.1, total_steps=10)
    return caught(lambda: training.step(gradients_of(rank, 1)))


def without_state(rank, state):
    ddp = DDP(Recorded())
    ddp.register_comm_hook(state, dgc.hook)
    return caught(lambda: ddp(gradients_of(rank, 0)).backward())


def again(training, state):
    """A new DDP with the same state."""
    training.ddp = DDP(copy.deepcopy(training.model))
    state.attach(training.ddp)
    training.ddp.register_comm_hook(state, dgc.hook)
    return training.ddp


def interrupted(rank):
    """Backward raises after some buckets were sent; a new DDP tries again with the same state."""
    training = Training(ddp=SMALL_BUCKETS, ratio=0.05)
    state = training.state
    for step in range(2):
        training.backward(gradients_of(rank, step))
    saved = state.state_dict()

    def fail(gradient):
        raise KeyError("a mistake of the user's")

    handle = training.model.first.register_hook(fail)
    assert "a mistake" in caught(lambda: training.ddp(gradients_of(rank, 2)).backward())
    handle.remove()
    ddp = again(training, state)
    error = caught(lambda: ddp(gradients_of(rank, 2)).backward())
    # What the error says helps, and at once: the state is what was loaded, and the step goes well.
    state.load_state_dict(saved)
    loaded = state.state_dict()
    again(training, state)(gradients_of(rank, 2)).backward()
    return error, same_parts(saved, loaded), state.step


def pickled_scaler(rank):
    """A state that had a scaler is of no use without."""
    training = Training(scaler=Scaler(1024.0))
    state = pickle.loads(pickle.dumps(training.state))
    ddp = again(training, state)
    error = caught(lambda: ddp(gradients_of(rank, 0)).backward())
    state.attach(training.ddp, scaler=Scaler(1024.0))
    again(training, state)(gradients_of(rank, 0)).backward()
    return error, state.step


class Errors(unittest.TestCase):
    def test_nonfinite_names_tensor_step_and_rank_everywhere(self):
        # With clipping all buckets wait for the last.
        for path, clip in (("core", None), ("torch", None), ("core", 1e9)):
            with self.subTest(path=path, clip=clip):
                for first, second, finite, step, code in run(nonfinite, path, clip):
                    self.assertIn(
                        "Error: exchange: rank 2: gave up: compress: 'conv': inf at index 55, "
                        "step 1, rank 2",
                        first,
                    )
                    self.assertIn("failed before", second)
                    self.assertTrue(finite)
                    self.assertEqual((step, code), (1, "nonfinite_gradient"))

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
        one, other = (
            run(scaled, use_scaler, (), None, "core", "error")[0][0] for use_scaler in (True, False)
        )
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    def test_clip_is_of_unscaled_gradients(self):
        one, other = (
            run(scaled, use_scaler, (), 88.0, "core")[0][0] for use_scaler in (True, False)
        )
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    def test_options_that_differ(self):
        for name, values, says in (
            ("ratio", (0.001, 0.01), "ratio 0.01"),
            ("momentum", (0.9, 0.8), "has 'momentum 0.8' where rank 0 has 'momentum 0.9'"),
        ):
            for error in run(differing, name, values, ranks=2):
                self.assertIn("rank 1", error)
                self.assertIn(says, error)

    def test_replicas_that_differ(self):
        # Every second step, and after the first whatever the interval is.
        for every, at, found in ((2, 2, 2), (2, 3, 4), (100, 1, 1)):
            with self.subTest(every=every, at=at):
                for step, error in run(diverged, every, at, ranks=2):
                    self.assertEqual(step, found)
                    self.assertIn(
                        f"rank 1: has other parameters than 1 of 2 ranks at step {found}", error
                    )
        self.assertEqual(run(diverged, 0, 1, ranks=2), [None, None])

    def test_a_rank_that_dies(self):
        for algorithm in ("allgather", "owner"):
            results = run(killed, algorithm, ranks=3, dying=[1])
            self.assertIsNone(results[1])
            for error, step in (results[0], results[2]):
                self.assertIn("exchange: rank 1, step 2", error)
                self.assertEqual(step, 2)

    def test_a_rank_that_stands_still(self):
        with tempfile.TemporaryDirectory() as folder:
            (error, step), _ = run(stopped, folder, ranks=2, dying=[1])
        self.assertIn("exchange: rank 1, step 2", error)
        self.assertEqual(step, 2)

    def test_an_optimizer_that_gets_momentum_later(self):
        for make, says in (
            (functools.partial(torch.optim.SGD, lr=0.05), "SGD has momentum of its own"),
            (functools.partial(dgc.SGD, lr=0.05), "give both the same"),
        ):
            for error in run(momentum_comes_later, make, ranks=2):
                self.assertIn("optimizer, step 1", error)
                self.assertIn(says, error)
                self.assertIn("cycle_momentum=False", error)

    def test_a_hook_without_its_state(self):
        for state in (None, 5):
            for error in run(without_state, state, ranks=2):
                self.assertIn(f"hook: state: is {state}", error)
                self.assertIn(
                    "has to be a dgc.DGCState (for example ddp.register_comm_hook(dgc.DGCState(",
                    error,
                )

    def test_a_backward_that_was_interrupted(self):
        for error, same, step in run(interrupted, ranks=2):
            self.assertIn("step 2: backward ended in the middle of this step", error)
            self.assertTrue(same)
            self.assertEqual(step, 3)

    def test_a_pickled_state_wants_its_scaler(self):
        for error, step in run(pickled_scaler, ranks=2):
            self.assertIn("scaler: this state had one before it was pickled", error)
            self.assertEqual(step, 1)

    def test_parts_of_errors(self):
        with self.assertRaises(dgc.Error) as raised:
            dgc.Schedule(0.0)
        error = raised.exception
        self.assertEqual(
            (error.code, error.operation, error.subject),
            ("invalid_argument", "schedule", "ratio 0"),
        )
        self.assertEqual(
            str(error), f"{error.operation}: {error.subject}: {error.problem} ({error.hint})"
        )

    def test_codes(self):
        self.assertEqual(
            {
                name: core.ERROR_CODES[name]
                for name in ("ok", "io", "truncated", "state_mismatch", "diverged")
            },
            {"ok": 0, "io": 8, "truncated": 100, "state_mismatch": 201, "diverged": 305},
        )
        for name in core.ERROR_CODES:
            with self.assertRaises(dgc.Error) as raised:
                core.fail(name, "an operation", "a subject", "a problem")
            self.assertEqual(raised.exception.code, name)
        with self.assertRaises(dgc.Error) as raised:  # of a newer version, on another rank
            core.fail("not_known", "an operation", "a subject", "a problem")
        self.assertEqual(raised.exception.code, "internal")

    def test_extension_links_no_framework(self):
        needed = subprocess.run(
            ["ldd", core.__file__], capture_output=True, text=True, check=True
        ).stdout
        for library in ("torch", "c10", "gloo", "mpi", "python"):
            self.assertNotIn(f"lib{library}", needed)
        self.assertTrue((pathlib.Path(dgc.__file__).parent / "py.typed").exists())


if __name__ == "__main__":
    unittest.main()
