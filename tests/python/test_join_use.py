"""test_join_use.py DGC PROJECT: what users of dgc.join write and read: the examples, and errors."""

import contextlib
import http.server
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from collections import Counter
from unittest import mock

import torch

import dgc
import dgc._core as core
from dgc._hub_model import HubModel
from dgc._hub_order import Order, Work
from members import EXAMPLES, INPUTS, TARGETS, Hub, loss_of, make_model

PROJECT = pathlib.Path(sys.argv[2]).resolve()
GOLDEN = [6, 7, 5, 3, 4, 0, 2, 1]  # permutation(8, Random{1, 0}) of src/base/random.h


class Orders(unittest.TestCase):
    def test_order(self):
        """That of `dgc train`: the same numbers on every machine."""
        order = Order(8, seed=1)
        self.assertEqual(order.take(0, 0, 8).tolist(), GOLDEN)
        others = [Order(8, 2).take(0, 0, 8).tolist(), order.take(1, 0, 8).tolist()]
        for other in others:
            self.assertEqual(sorted(other), list(range(8)))
            self.assertNotEqual(other, GOLDEN)
        # Data of one's own: from the end of an epoch into the next.
        self.assertEqual(order.take(0, 6, 5).tolist(), GOLDEN[6:] + others[1][:3])
        self.assertEqual(order.take(0, 2, 3).tolist(), GOLDEN[2:5])

    def test_batches(self):
        work = Work(0, 0, 1, 7, 0.0, 3, Order(8, seed=1))
        self.assertEqual(
            [b.tolist() for b in work.batches()], [GOLDEN[1:4], GOLDEN[4:7], GOLDEN[7:]]
        )
        self.assertEqual([len(b) for b in work.batches(5)], [5, 2])


class Replica:
    """Of a HubMember, what HubModel looks at."""

    def __init__(self, model):
        self.tensors = [torch.zeros(p.numel()) for p in model.parameters()]
        self.averages = torch.full((8,), 2.0)

    def parameters(self):
        return [(t.data_ptr(), t.numel()) for t in self.tensors]

    def buffers(self):
        return self.averages.data_ptr(), self.averages.numel()


class Buffers(unittest.TestCase):
    def test_own_until_the_next_average(self):
        norm = torch.nn.BatchNorm1d(4)
        model, replica = HubModel(norm, True), Replica(norm)
        model.take(replica)
        self.assertEqual(model.flat_buffers().tolist(), [2.0] * 8)
        norm.running_mean.fill_(3.0)
        model.take(replica)
        self.assertEqual(model.flat_buffers().tolist(), [3.0] * 4 + [2.0] * 4)
        model.take(replica, with_buffers=True)  # to evaluate, and at the end
        self.assertEqual(model.flat_buffers().tolist(), [2.0] * 8)
        norm.running_mean.fill_(3.0)
        replica.averages.fill_(4.0)
        model.take(replica)
        self.assertEqual(model.flat_buffers().tolist(), [4.0] * 8)

    def test_which(self):
        """Counters, and what is not saved with a model, are each member's own."""
        norm = torch.nn.BatchNorm1d(4)
        norm.register_buffer("mask", torch.full((2,), float("-inf")), persistent=False)
        norm.register_buffer("table", torch.ones(2, dtype=torch.float16))

        def names(wanted):
            return [name for name, _ in HubModel(norm, wanted).buffers]

        self.assertEqual(names(True), ["running_mean", "running_var", "table"])
        self.assertEqual(names(["running_var"]), ["running_var"])
        self.assertEqual(names(False), [])


class Texts(unittest.TestCase):
    """The Python of the manual and of the docstrings runs as it stands."""

    def texts(self):
        for page in ("README.md", "docs/pytorch.md", "python/README.md"):
            found = re.findall(r"^```python\n(.*?)^```$", (PROJECT / page).read_text(), re.M | re.S)
            yield from ((page, text) for text in found if "dgc.join(" in text)
        for thing in (dgc.join, dgc.Member, dgc.Work):
            found = re.findall(r"::\n\n((?:[ ]+.*\n|\n)+)", inspect.getdoc(thing) + "\n")
            yield from ((thing.__name__, textwrap.dedent(text)) for text in found)

    def test_texts(self):
        count = Counter()
        for where, text in self.texts():
            count[where] += 1
            with self.subTest(where), tempfile.TemporaryDirectory() as folder:
                self.run_text(pathlib.Path(folder), text)
        self.assertEqual(
            count,
            {
                "README.md": 1,
                "docs/pytorch.md": 2,
                "python/README.md": 1,
                "join": 1,
                "Member": 2,
                "Work": 1,
            },
        )

    def run_text(self, folder, text):
        local = {"mode": "dgc-local", "local-steps": 2, "lr": 0.01} if "inner=" in text else {}
        hub = Hub(folder, epochs=0.5, **local)
        self.addCleanup(hub.kill)
        variables = {"DGC_TOKEN": hub.invitation, "XDG_STATE_HOME": str(folder)}
        names = {
            "dgc": dgc,
            "torch": torch,
            "model": make_model(),
            "inputs": INPUTS,
            "targets": TARGETS,
            "loss_function": torch.nn.functional.cross_entropy,
            "url": hub.url,
            "pin": hub.pin,
        }
        with mock.patch.dict(os.environ, variables), contextlib.redirect_stderr(io.StringIO()):
            if "dgc.join(" not in text:
                names["member"] = dgc.join(hub.url, names["model"], data=INPUTS, pin=hub.pin)
            text = text.replace("https://hub.example.org:7077", hub.url)
            exec(text.replace("sha256:…", hub.pin), names)
        summary = hub.stop()
        self.assertTrue(summary["finished"])
        hash_of_member = f"{names['member'].hash():016x}"
        (result,) = summary["modes"].values()
        self.assertEqual(result["parameters_hash"], hash_of_member)
        self.assertGreater(result["steps"], 5)


class Example(unittest.TestCase):
    def test_script(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part, count in (("train", 200), ("t10k", 50)):
                images = bytes((i % 10) * 25 for i in range(count) for _ in range(28 * 28))
                (folder / f"{part}-images-idx3-ubyte").write_bytes(bytes(16) + images)
                labels = bytes(i % 10 for i in range(count))
                (folder / f"{part}-labels-idx1-ubyte").write_bytes(bytes(8) + labels)
            hub = Hub(folder, batch=64)
            self.addCleanup(hub.kill)
            script = PROJECT / "examples" / "pytorch" / "hub.py"
            done = subprocess.run(
                [sys.executable, script, hub.url, "--pin", hub.pin, "--data", folder]
                + ["--state", folder / "state"],
                env={**os.environ, "DGC_TOKEN": hub.invitation},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            result = hub.stop()["modes"]["dgc"]
            last = f"finished after round {result['steps']}, parameters {result['parameters_hash']}"
            self.assertEqual(done.stdout.splitlines()[-1], last)
            self.assertRegex(done.stdout, r"^round \d+: accuracy \d+\.\d\d\n")
            self.assertTrue((folder / "trained.pt").exists())


class Answers(http.server.BaseHTTPRequestHandler):
    """Of what is no hub: one after the other, the last one again and again."""

    def do_GET(self):
        answers = self.server.answers
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Refused(unittest.TestCase):
    """What does not fit, and how that is said."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.hub = Hub(cls.folder, epochs=3)
        cls.addClassCleanup(cls.hub.kill)
        cls.token = cls.hub.token("first")
        # The model of the run is the first member's.
        with mock.patch.dict(os.environ, DGC_TOKEN=cls.token):
            cls.first = cls.join(cls, state=cls.folder / "first")
        cls.addClassCleanup(cls.first.close)
        next(iter(cls.first))

    def setUp(self):
        os.environ["DGC_TOKEN"] = self.token

    def join(self, **other):
        folder = self.folder / f"state-{len(os.listdir(self.folder))}"
        given = {"url": self.hub.url, "pin": self.hub.pin, "data": EXAMPLES, "state": folder}
        given.update({"model": make_model(), "say": lambda line: None}, **other)
        return dgc.join(given.pop("url"), given.pop("model"), **given)

    def refused(self, code, subject, problem, **other):
        with self.assertRaises(dgc.Error) as caught:
            self.join(**other)
        error = caught.exception
        self.assertEqual(error.code, code, str(error))
        self.assertIn(subject, error.subject)
        self.assertRegex(error.problem, problem)
        self.assertNotIn(self.token.split(".")[1], str(error))
        return error

    def invalid(self, subject, problem, **other):
        return self.refused("invalid_argument", subject, problem, **other)

    def test_address(self):
        for url in ("hub:7077", "ftp://hub", "https://", "https://hub/path", "https://hub:x", 7):
            self.invalid("url", "is no address of a hub", url=url)
        problem = "is not encrypted: everybody on the way can read the token"
        self.invalid("url", problem, url="http://hub.example.org", pin=None)
        self.invalid("insecure", "is True", insecure=True)
        for pin in ("sha256:12", "1" * 64, 7, "sha256:" + "x" * 64):
            self.invalid("pin", "is not sha256: and 64 digits", pin=pin)
        self.invalid("pin", "is of no use without https", url="http://127.0.0.1:1")

    def test_who_the_hub_is(self):
        wrong = "sha256:" + "0" * 64
        problem = f"shows {self.hub.pin}, and the pin is {wrong}"
        self.refused("configuration_mismatch", self.hub.url, problem, pin=wrong)
        problem = "has a certificate that is not trusted here"
        self.refused("configuration_mismatch", self.hub.url, problem, pin=None)
        self.join(pin=self.hub.pin.upper()).close()

    def test_token(self):
        del os.environ["DGC_TOKEN"]
        self.invalid("DGC_TOKEN", "is not set")
        for text, problem in (
            ("first.0123", "is unknown or revoked"),
            ("two words", "has no token"),
        ):
            file = self.folder / "token"
            file.write_text(text)
            self.invalid("token", problem, token_file=file)
        self.refused("io", "absent", "cannot be read: No such file", token_file="absent")
        os.environ["DGC_TOKEN"] = self.hub.reader
        self.invalid("token 'look'", "is for looking at the run only")

    def test_invitation(self):
        """It is exchanged once. Where the token that was kept is of no use any more, again."""
        os.environ["DGC_TOKEN"] = self.hub.invitation
        state = self.folder / "invited"

        def name():
            member = self.join(name="guest", state=state)
            member.close()
            return member.name

        self.assertEqual([name(), name()], ["guest", "guest"])
        kept = state / "token"
        text = kept.read_text()
        del os.environ["DGC_TOKEN"]
        self.assertEqual(name(), "guest")
        kept.write_text("guest.0123")
        self.invalid("token", "is unknown or revoked", state=state)
        os.environ["DGC_TOKEN"] = self.hub.invitation
        self.assertEqual(name(), "guest-2")
        self.assertNotEqual(kept.read_text(), text)

    def test_model_and_data(self):
        code = "configuration_mismatch"
        problem = (
            r"^as tensor 2 the run has '3\.weight' of 16x12, the member has '3\.weight' of 9x12$"
        )
        self.refused(code, "model", problem, model=make_model(width=9))
        self.refused(code, "buffers", "'1.running_mean' of 4", buffers=False)
        self.refused(code, "data", "the run has examples \\(480 positions\\)", data=81)
        self.refused(code, "data", "the member has faces", data_name="faces")
        self.invalid("data", "is 0 ", data=0)
        self.invalid("model", "is 7 ", model=7)
        bad = make_model()
        bad[3].bias.data[1] = float("nan")
        self.invalid("parameter '3.bias'", "has a value that is NaN or infinite", model=bad)
        hint = self.invalid("buffers: '1.mean'", "is no buffer", buffers=["1.mean"]).hint
        self.assertEqual(hint, "those are 1.running_mean, 1.running_var")
        self.invalid("inner", "the run has no local steps", inner=torch.optim.AdamW)

    def test_folder(self):
        problem = "is in use by another member"
        self.refused("io", "first", problem, state=self.folder / "first")
        (self.folder / "file").write_text("")
        self.refused("io", "file", "cannot be used", state=self.folder / "file")

    def test_loop(self):
        member = self.first
        with self.assertRaisesRegex(dgc.Error, "optimizer: is the hub's"):
            member.optimizer
        work = next(iter(member))
        with self.assertRaisesRegex(dgc.Error, "gradients: there are none"):
            member.contribute(1.0)
        loss_of(member._model.module, work.indices).backward()
        with self.assertRaisesRegex(dgc.Error, "examples: is 0"):
            member.contribute(1.0, examples=0)
        with self.assertRaisesRegex(dgc.Error, "work: was not contributed"):
            for _ in member:
                pass
        self.assertEqual(next(iter(member)).first, work.first)  # the same again
        loss_of(member._model.module, work.indices).backward()
        member.contribute(1.0)
        with self.assertRaisesRegex(dgc.Error, "work: there is none to contribute to"):
            member.contribute(1.0)

    def test_what_is_no_hub(self):
        """Answers that are worth another attempt, and such that are not."""
        away = core.write_packet('{"error": "internal", "subject": "disk", "problem": "is full"}')
        old = core.write_packet('{"version": "0.0.1", "protocol": 7}')
        answers = [(503, away), (502, b"<html>"), (200, old)]
        with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
            server.answers = answers
            threading.Thread(target=server.serve_forever).start()
            self.addCleanup(server.shutdown)
            address = f"127.0.0.1:{server.server_port}"
            said = []
            with mock.patch.object(dgc._courier, "_FIRST_PAUSE", 0.01):
                error = self.refused(
                    "configuration_mismatch",
                    "version",
                    r"the hub has dgc 0\.0\.1 \(protocol 7\), this is dgc ",
                    url=f"http://{address}",
                    pin=None,
                    say=said.append,
                )
            self.assertEqual(error.hint, "install the same version on both")
            pattern = r"^no answer from http://127.* \({}\); trying again in 0\.0 s$"
            self.assertRegex(said[0], pattern.format("disk: is full"))
            self.assertRegex(said[1], pattern.format("HTTP 502"))
            self.assertRegex(said[2], "answers again")
            answers[:] = [(404, b"<html>")]
            problem = "answers with HTTP 404, and not as a hub does"
            self.refused("bad_magic", address, problem, url=f"http://{address}", pin=None)
            problem = "speaks no TLS"
            self.refused("configuration_mismatch", address, problem, url=f"https://{address}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
