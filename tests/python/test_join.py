"""test_join.py DGC PROJECT: members in Python that come and go, at a hub in a process of its own."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

import dgc  # noqa: E402
from dgc._hub_address import pin_of  # noqa: E402

DGC, PROJECT = sys.argv[1], pathlib.Path(sys.argv[2])
EXAMPLES, FEATURES, CLASSES = 480, 12, 4
torch.set_num_threads(1)


def inputs_and_targets():
    chance = torch.Generator().manual_seed(5)
    inputs = torch.randn(EXAMPLES, FEATURES, generator=chance)
    return inputs, (inputs @ torch.randn(FEATURES, CLASSES, generator=chance)).argmax(1)


INPUTS, TARGETS = inputs_and_targets()


def make_model(width=16, seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (4, 3)),  # a slow member may get one example, which has no variance
        torch.nn.BatchNorm1d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(FEATURES, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, CLASSES),
    )


def loss_of(model, chosen):
    return torch.nn.functional.cross_entropy(model(INPUTS[chosen]), TARGETS[chosen])


def flat(tensors):
    return torch.cat([t.detach().flatten().float() for t in tensors])


class Hub:
    """`dgc serve`, which may end and come back at the same address."""

    def __init__(self, folder, **options):
        self.folder, self._port = folder / "run", 0
        flags = {
            "lr": 0.1,
            "workers": 2,
            "batch": 16,
            "save-every": 4,
            "evaluate-every": 10,
            **options,
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        self._start("--own-model", "--no-warmup", "--out", self.folder, *words)

    def _start(self, *words):
        where = ["--address", "127.0.0.1", "--port", str(self._port), "--json"]
        with open(self.folder.with_name("log"), "a") as log:
            self.process = subprocess.Popen(
                [DGC, "serve", *where, *words], stdout=subprocess.PIPE, stderr=log, text=True
            )
        said = json.loads(self.process.stdout.readline())
        self.url, self.pin = said["url"], said["pin"]
        self._port = int(self.url.rsplit(":", 1)[1])
        if said["token"]:
            self.invitation, self.reader = said["token"], said["read_token"]

    def come_back(self):
        self._start("--resume", self.folder)

    def token(self, name):
        command = [DGC, "token", "add", name, "--run", self.folder, "--json"]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(made.stdout)["token"]

    def end(self):
        """What it says at the end of the run."""
        out, _ = self.process.communicate(timeout=60)
        return json.loads(out)

    def stop(self):
        self.process.terminate()
        return self.end()

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Worker:
    """A member in a forked process. It trains as often as it was allowed to, and says by lines of
    JSON what it does."""

    _ours = set()  # ends of pipes that other workers must not have

    def __init__(self, train, *arguments):
        allowed, self._allow = os.pipe()
        heard, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for ours in (self._allow, heard, *Worker._ours):
                    os.close(ours)
                train(Place(allowed, say), *arguments)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(allowed)
        os.close(say)
        Worker._ours |= {self._allow, heard}
        self._lines = open(heard)
        self.said = []

    def allow(self, count):
        os.write(self._allow, b"x" * count)

    def until(self, kind, count=1):
        """Reads on until it has said so many lines of a kind, from now on."""
        while count > 0:
            line = self._lines.readline()
            if not line:
                raise AssertionError(f"ended while '{kind}' was waited for: {self.said[-5:]}")
            self.said.append(json.loads(line))
            count -= self.said[-1]["kind"] == kind
        return self.said[-1]

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Its exit status, and all that it has said."""
        os.close(self._allow)
        for line in self._lines:
            self.said.append(json.loads(line))
        Worker._ours -= {self._allow, self._lines.fileno()}
        self._lines.close()
        return os.waitpid(self.pid, 0)[1], self.said


class Place:
    """A worker's end of its pipes."""

    def __init__(self, allowed, say):
        self._allowed, self._say = allowed, say

    def say(self, kind, **more):
        os.write(self._say, (json.dumps({"kind": kind, **more}) + "\n").encode())

    def wait(self):
        """For permission; at the end of the pipe there is no limit any more."""
        while True:
            try:
                os.read(self._allowed, 1)
                return
            except InterruptedError:
                pass


def train(place, hub, token, state, more):
    """What a user writes, and reports."""
    os.environ["DGC_TOKEN"] = token
    seed, inner = more.pop("seed", 1), more.get("inner")
    model = make_model(seed=seed)
    evaluated = []

    def evaluate():
        assert not model.training and not torch.is_grad_enabled()
        evaluated.append(1)
        right = (model(INPUTS).argmax(1) == TARGETS).float().mean()
        return {"accuracy": right, "loss": loss_of(model, slice(None))}

    member = dgc.join(
        hub.url,
        model,
        data=INPUTS,
        pin=hub.pin,
        state=state,
        evaluate=evaluate,
        say=lambda line: place.say("line", text=line),
        **more,
    )
    for work in member:
        sequence = member._core.lease[0]
        place.say("work", sequence=sequence, epoch=work.epoch, indices=work.indices.tolist())
        place.wait()
        assert model.training
        if inner is None:
            loss = loss_of(model, work.indices)
            loss.backward()
        else:
            for chosen in work.batches(4):
                member.optimizer.zero_grad()
                loss = loss_of(model, chosen)
                loss.backward()
                member.optimizer.step()
        member.contribute(loss)
        place.say("contributed", sequence=sequence)
    place.say(
        "end",
        hash=member.hash(),
        round=member.round,
        finished=member.finished,
        name=member.name,
        parameters=flat(model.parameters()).tolist(),
        buffers=flat([model[1].running_mean, model[1].running_var]).tolist(),
        evaluated=len(evaluated),
    )


def works_of(said):
    """What a member has contributed and not lost, of all its lives: (epoch, indices) by message."""
    works, pending = {}, {}
    for line in said:
        if line["kind"] == "work":
            pending[line["sequence"]] = (line["epoch"], line["indices"])
        elif line["kind"] == "contributed":
            works[line["sequence"]] = pending[line["sequence"]]
        elif line["kind"] == "line" and line["text"].startswith("back at message "):
            to = int(line["text"].split("message ")[1].split(",")[0])
            works = {sequence: work for sequence, work in works.items() if sequence <= to}
    return works


class Join(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def hub(self, **options):
        hub = Hub(self.folder, **options)
        self.addCleanup(hub.kill)
        return hub

    def worker(self, hub, name, token, **more):
        return Worker(train, hub, token, self.folder / name, more)

    def ended(self, workers):
        """What all of them have said, when they have ended well."""
        ends = {}

        def end(name, worker):
            ends[name] = worker.end()

        # All at once: they need each other.
        threads = [threading.Thread(target=end, args=pair) for pair in workers.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for status, said in ends.values():
            self.assertEqual(status, 0, said[-3:])
        return {name: said for name, (_, said) in ends.items()}

    def check_same(self, said, summary):
        """At the end of the run."""
        for lines in said.values():
            self.assertTrue(lines[-1]["finished"])
            self.assertEqual(f"{lines[-1]['hash']:016x}", summary["parameters_hash"])
            self.assertEqual(lines[-1]["round"], summary["steps"])
            for part in ("parameters", "buffers"):
                self.assertEqual(lines[-1][part], next(iter(said.values()))[-1][part])

    def test_members_come_and_go(self):
        hub = self.hub(epochs=3)
        tokens = {name: hub.token(name) for name in "ab"}
        lives = {"a": [], "b": [], "c": []}
        a, b = (self.worker(hub, name, tokens[name]) for name in "ab")
        for worker in (a, b):
            worker.allow(14)
        for worker in (a, b):
            worker.until("work", 15)
        a.signal(signal.SIGKILL)
        lives["a"] += a.end()[1]
        a = self.worker(hub, "a", tokens["a"], seed=2)  # comes back, with other parameters
        for worker in (a, b):
            worker.allow(5)
        for worker in (a, b):
            worker.until("work", 5)

        # The hub is away for a while, and comes back.
        hub.stop()
        for worker in (a, b):
            worker.allow(1)
            worker.until("contributed")
            said = worker.until("line")["text"]
            self.assertRegex(said, r"^no answer from https://127.*\); trying again in \d\.\d s$")
        hub.come_back()
        for worker in (a, b):
            worker.until("work")

        # One leaves, another one comes by invitation, and the first comes back.
        b.signal(signal.SIGTERM)
        while "leaves after" not in b.until("line")["text"]:
            pass
        status, said = b.end()
        self.assertEqual((status, said[-1]["kind"], said[-1]["finished"]), (0, "end", False))
        lives["b"] += said
        c = self.worker(hub, "c", hub.invitation)
        c.until("work")
        kept = self.folder / "c" / "token"
        self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o600)
        self.assertNotIn(hub.invitation, kept.read_text())
        b = self.worker(hub, "b", tokens["b"])
        b.until("work")

        ends = self.ended({"a": a, "b": b, "c": c})
        summary = hub.end()["modes"]["dgc"]
        self.assertTrue(summary["finished"])
        self.check_same(ends, summary)
        for name, said in ends.items():
            lives[name] += said

        counts = Counter()
        for said in lives.values():
            for epoch, indices in works_of(said).values():
                counts.update((epoch, index) for index in indices)
        self.assertEqual(counts, Counter((e, i) for e in range(3) for i in range(EXAMPLES)))
        lost = [line for line in lives["a"] if line.get("text", "").startswith("back at")]
        self.assertEqual(len(lost), 1)
        self.assertEqual([line for line in lives["b"] if "back at" in line.get("text", "")], [])
        self.assertGreater(sum(said[-1]["evaluated"] for said in ends.values()), 0)
        self.assertGreater(summary["metric"], 0.6)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
