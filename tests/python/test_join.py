"""test_join.py DGC: members in Python that come and go, at a hub in a process of its own."""

import os
import pathlib
import signal
import stat
import sys
import tempfile
import threading
import unittest
from collections import Counter

import torch

from members import EXAMPLES, Hub, Worker, flat, loss_of, make_model, train


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

    def hub(self, *switches, **options):
        hub = Hub(self.folder, *switches, **options)
        self.addCleanup(hub.kill)
        return hub

    def worker(self, hub, name, token, **more):
        worker = Worker(train, hub, token, self.folder / name, more)
        self.addCleanup(worker.kill)
        return worker

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
        hub = self.hub("--no-warmup", epochs=3)
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
        summary = hub.stop()["modes"]["dgc"]
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
        self.assertGreater(summary["metric"], 0.7)

    def test_is_sgd(self):
        """A member alone, that sends everything: momentum SGD with weight decay, at the hub's rate."""
        hub = self.hub(
            "--no-warmup",
            **{"workers": 1, "ratio": 1, "values": "fp32", "epochs": 0.6},
            **{"momentum": 0.9, "weight-decay": 0.01, "lr-schedule": "constant"},
        )
        said = self.ended({"a": self.worker(hub, "a", hub.invitation, seed=3)})["a"]
        hub.stop()
        model = make_model(seed=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=0.01)
        for line in said:
            if line["kind"] == "work":
                optimizer.zero_grad()
                loss_of(model, line["indices"]).backward()
                optimizer.step()
        last = torch.tensor(said[-1]["parameters"])
        self.assertGreater((last - flat(make_model(seed=3).parameters())).abs().max(), 0.05)
        torch.testing.assert_close(last, flat(model.parameters()), rtol=1e-4, atol=1e-5)
        self.assertEqual(said[-1]["name"], os.uname().nodename.split(".")[0])

    def test_local_steps(self):
        """The optimizer's state comes back with the residual."""
        hub = self.hub(mode="dgc-local", **{"local-steps": 5}, batch=8, lr=0.01, epochs=6)
        tokens = {name: hub.token(name) for name in "ab"}
        inner = torch.optim.AdamW
        a, b = (self.worker(hub, name, tokens[name], inner=inner) for name in "ab")
        for worker in (a, b):
            worker.allow(6)
        for worker in (a, b):
            worker.until("work", 7)
        a.kill()
        a = self.worker(hub, "a", tokens["a"], inner=inner)
        steps = a.until("work")["steps"]
        self.assertGreaterEqual(steps, 4)
        said = self.ended({"a": a, "b": b})
        summary = hub.stop()["modes"]["dgc-local"]
        self.check_same(said, summary)
        self.assertGreater(summary["metric"], 0.8)
        # Fewer at the end of an epoch.
        counts = [len(line["indices"]) for line in said["b"] if line["kind"] == "work"]
        self.assertEqual(max(counts), 5 * 4)

    def test_private_data(self):
        """The hub says only how many; each member goes through its own data, in an order of its own."""
        hub = self.hub("--private-data", steps=40)
        a, b = (self.worker(hub, name, hub.token(name)) for name in "ab")
        said = self.ended({"a": a, "b": b})
        self.check_same(said, hub.stop()["modes"]["dgc"])
        seen = [i for line in said["a"] if line["kind"] == "work" for i in line["indices"]]
        self.assertEqual(len(set(seen[:EXAMPLES])), min(len(seen), EXAMPLES))

    def test_leaving_without_a_hub(self):
        hub = self.hub(epochs=3)
        token = hub.token("a")
        a = self.worker(hub, "a", token)
        a.until("work")
        hub.kill()
        a.allow(1)
        a.until("contributed")
        while "trying again" not in a.until("line")["text"]:
            pass
        a.signal(signal.SIGTERM)
        while "leaves after" not in a.until("line")["text"]:
            pass
        a.signal(signal.SIGTERM)  # a second one ends at once
        self.assertEqual(a.end()[0], signal.SIGTERM)
        # The first one alone is patient, but not for ever. What is on its way stays.
        hub.come_back()
        a = self.worker(hub, "a", token, patience=0.5)
        a.until("work")
        hub.kill()
        a.allow(1)
        a.until("contributed")
        a.signal(signal.SIGINT)
        status, said = a.end()
        self.assertEqual(status, 0)
        self.assertIn("the hub does not answer: what is not sent stays in", said[-2]["text"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
