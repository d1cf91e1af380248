#!/usr/bin/env python3
"""dgc serve, join, token, status, export and inspect as processes: test_commands.py DGC SCRIPTS [PART]"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

DGC = sys.argv[1]
SCRIPTS = pathlib.Path(sys.argv[2])
sys.path.insert(0, str(SCRIPTS))
from hub_processes import HubProcesses, free_port  # noqa: E402

HERE = pathlib.Path(tempfile.mkdtemp(prefix="dgc-hub-commands-"))
# Generated data, a small model: a round takes milliseconds.
SMALL = ["synthetic", "--model", "cnn", "--examples", "256", "--batch", "16", "--workers", "2", "--lr", "0.01", "--ratio", "0.01",
         "--no-warmup"]


def dgc(*words, timeout=60, **env):
    clean = {k: v for k, v in os.environ.items() if k != "DGC_TOKEN"}
    return subprocess.run([DGC, *map(str, words)], env={**clean, **env}, capture_output=True, text=True, timeout=timeout)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = HERE / self.id().split(".")[-1]

    def refused(self, ended, *words):
        """An error of one line that has all these words in it, and nothing else happened."""
        self.assertNotIn(ended.returncode, (0, -signal.SIGSEGV, -signal.SIGABRT), ended.stdout)
        for word in words:
            self.assertIn(word, ended.stderr)
        self.assertLessEqual(len(ended.stderr.strip().splitlines()), 2, ended.stderr)

    def ends(self, run, seconds=120):
        self.assertTrue(run.wait(seconds), run.text("hub.err"))

    def until(self, what, seconds=60):
        end = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)


class WrongWords(Case):
    def serve(self, *words):
        ended = dgc("serve", "--address", "127.0.0.1", "--out", self.folder, *words, timeout=20)
        self.assertFalse(self.folder.exists(), "half of a run was written")
        return ended

    def test_serve(self):
        self.refused(self.serve("fashion", "--mode", "dense"), "--mode dense", "--ratio 1")
        self.refused(self.serve("fashion", "--ratio", "auto"), "--ratio auto")
        self.refused(self.serve("fashion", "--budget", "1%"), "--budget", "means nothing to a hub")
        self.refused(self.serve("fashion", "--data", "x"), "--data", "means nothing to a hub")
        self.refused(self.serve("fashion", "--private-data"), "--private-data", "--steps")
        self.refused(self.serve("--own-model"), "--own-model", "--lr")
        self.refused(self.serve("fashion", "--own-model", "--lr", "1"), "--own-model")
        self.refused(self.serve("fashion", "--deadline", "soon"), "--deadline soon", "seconds")
        self.refused(self.serve("fashion", "--down", "forward", "--momentum-correction", "global"), "global", "--down select")
        self.refused(dgc("serve", "fashion", "--insecure", "--out", self.folder, timeout=20), "--insecure", "--insecure-anywhere")
        self.refused(self.serve("fashion", "--certificate", "x.pem"), "--certificate", "--key")
        self.refused(self.serve("fashion", "--certificate", "x.pem", "--key", "x.pem"), "x.pem", "PEM")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused(self.serve("fashion", "--port", taken.getsockname()[1]), "cannot listen there", "--port")
        self.refused(dgc("serve", "--resume", HERE / "nothing", timeout=20), "there is no such run")

    def test_join(self):
        pin = "sha256:" + "0" * 64
        for url, word in (("hub.example", "is no address"), ("https://", "no host"), ("https://a:b", "no port"),
                          ("https://a:1/b", "after the port"), ("http://127.0.0.1:1", "--insecure")):
            self.refused(dgc("join", url, "--state", self.folder, DGC_TOKEN="x"), word)
        self.refused(dgc("join", "https://a:1", "--pin", "sha1:12"), "--pin", "64")
        self.refused(dgc("join", "http://example.org:1", "--insecure"), "--insecure-anywhere")
        self.refused(dgc("join", "https://a:1", "--name", "a b"), "--name")
        self.refused(dgc("join", f"https://127.0.0.1:{free_port()}", "--pin", pin, "--state", self.folder), "DGC_TOKEN")
        self.refused(dgc("join", "https://a:1", "--token-file", HERE / "none"), "none")

    def test_token_and_status(self):
        self.refused(dgc("token", "list", "--run", HERE), "is not the folder of a hub's run")
        self.refused(dgc("status", "https://a:1"), "DGC_TOKEN")
        port = free_port()
        self.refused(dgc("status", f"https://127.0.0.1:{port}", DGC_TOKEN="x"), "is the hub running?")


class Runs(Case):
    def test_a_run_from_begin_to_end(self):
        with HubProcesses(DGC, self.folder, [*SMALL, "--steps", "60", "--evaluate-every", "20"]) as run:
            run.serve()
            run.join("a")
            run.join("b")
            self.ends(run)
            self.assertEqual([m.process.returncode for m in run.members.values()], [0, 0], run.text("a.err"))
            self.assertEqual(run.hub.returncode, 0)
            audit, summary = run.audit(), run.summary()
            (mode,) = summary["modes"].values()
            hashes = {run.result("a")["parameters_hash"], run.result("b")["parameters_hash"], audit["hash"], mode["parameters_hash"]}
            self.assertEqual(len(hashes), 1)
            self.assertEqual((audit["to"], mode["steps"], mode["finished"]), (60, 60, True))
            self.assertEqual(sum(m["messages"] for m in audit["members"].values()),
                             sum(run.result(n)["messages"] for n in "ab"))
            lines = [json.loads(line) for line in (run.run / "dgc" / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual([l["step"] for l in lines if l["type"] == "evaluation"], [20, 40, 60])
            self.assertTrue((run.run / "report.html").stat().st_size > 10_000)
            # Secrets: for their owner alone, and nowhere in the run's folder.
            self.assertEqual((run.run / "hub" / "key.pem").stat().st_mode & 0o77, 0)
            self.assertEqual((self.folder / "state" / "a" / "token").stat().st_mode & 0o77, 0)
            secret = run.facts["token"].split(".")[1].encode()
            for file in [f for f in run.run.rglob("*") if f.is_file()]:
                self.assertNotIn(secret, file.read_bytes(), file)
            # Of a run that is over there is nothing to train, and what was evaluated stays known.
            self.assertEqual(dgc("export", run.run, "--out", self.folder / "over").returncode, 0)
            over = dgc("train", "--resume", self.folder / "over", "--workers", "1", "--json")
            self.assertTrue(0 < json.loads(over.stdout)["modes"]["dgc"]["loss"] < 10, over.stdout + over.stderr)
            # The run cannot be begun again, nor served twice.
            self.refused(dgc("serve", *SMALL, "--out", run.run), "--resume")

    def test_everybody_stops_and_goes_on(self):
        with HubProcesses(DGC, self.folder, [*SMALL, "--steps", "100000", "--save-every", "5"]) as run:
            run.serve()
            run.join("a")
            self.until(lambda: (run.status() or {"round": 0})["round"] > 20)
            self.refused(dgc("serve", "--resume", run.run, timeout=30), "serve: ", "another process is writing this run")
            run.hub.send_signal(signal.SIGTERM)
            self.assertEqual(run.hub.wait(20), 128 + signal.SIGTERM)
            # Members come back to the address that they know.
            self.assertIn(f"dgc serve --resume {run.run} --address 127.0.0.1 --port {run.port}\n", run.text("hub.err"))
            before = run.audit()
            self.until(lambda: "trying again in" in run.text("a.err"))
            self.refused(dgc("serve", "--resume", run.run, "--down", "select"), "--down", "cannot change")
            self.refused(dgc("serve", "--resume", run.run, "--lr", "1"), "--lr", "cannot change")
            run.serve()
            self.until(lambda: (run.status() or {"round": 0})["round"] > before["to"] + 20)
            run.members["a"].signal(signal.SIGINT)
            self.assertEqual(run.members["a"].process.wait(30), 128 + signal.SIGINT)
            self.assertTrue(run.result("a")["told"])
            # Nothing was lost: it comes back where it was.
            self.until(lambda: run.status()["active"] == 0)
            run.members["a"].start()
            self.until(lambda: run.status()["active"] == 1)
            self.assertNotIn("is lost", run.text("a.err"))
            # The hub is away while it leaves: it does not wait long.
            run.kill_hub()
            run.members["a"].signal(signal.SIGTERM)
            self.assertEqual(run.members["a"].process.wait(30), 128 + signal.SIGTERM)
            self.assertIn("the hub does not answer", run.text("a.err"))

    def test_tokens(self):
        with HubProcesses(DGC, self.folder, [*SMALL, "--steps", "100000"]) as run:
            run.serve()
            read = run.facts["read_token"]
            added = json.loads(dgc("token", "add", "anna", "--run", run.run, "--json").stdout)
            self.assertEqual((added["url"], added["pin"]), (run.facts["url"], run.facts["pin"]))
            line = dgc("token", "add", "ben", "--run", run.run).stdout
            self.assertRegex(line, r"^DGC_TOKEN=ben\.\w+ dgc join https://127.0.0.1:\d+ --pin sha256:[0-9a-f]{64}\n$")
            self.refused(dgc("token", "add", "anna", "--run", run.run), "has a token already")
            self.refused(dgc("token", "add", "a b", "--run", run.run), "is no name")
            self.refused(dgc("token", "revoke", "carl", "--run", run.run), "has no token")
            names = {t["name"]: t["right"] for t in json.loads(dgc("token", "list", "--run", run.run, "--json").stdout)}
            self.assertEqual(names, {"join": "invite", "look": "read", "anna": "work", "ben": "work"})
            self.assertNotIn(added["token"].split(".")[1], dgc("token", "list", "--run", run.run).stdout)

            def join(token, **more):
                words = ["join", run.facts["url"], "--pin", more.get("pin", run.facts["pin"]), "--state", self.folder / "s"]
                return dgc(*words, DGC_TOKEN=token)
            self.refused(dgc("train", "--resume", run.run), "is the run of a hub", "dgc serve --resume", "dgc export")
            self.refused(join("anna." + "0" * 32), "unknown or revoked")
            self.refused(join(read), "looking at the run only")
            self.refused(join(added["token"], pin="sha256:" + "0" * 64), "another key", run.facts["pin"])
            self.refused(dgc("join", run.facts["url"], "--state", self.folder / "s", DGC_TOKEN="x"), "not trusted", "--pin")

            # One with a token of its own trains until it is revoked.
            with open(self.folder / "token", "w") as file:
                file.write(added["token"] + "\n")
            words = [DGC, "join", run.facts["url"], "--pin", run.facts["pin"], "--state", str(self.folder / "anna"),
                     "--token-file", str(self.folder / "token"), "--threads", "1"]
            with open(self.folder / "anna.err", "w") as err:
                anna = subprocess.Popen(words, stderr=err)
            try:
                self.until(lambda: run.status()["round"] > 5)
                self.refused(dgc(*words[1:]), "join: ", "is in use by another member", "--name")
                shown = dgc("status", run.facts["url"], "--pin", run.facts["pin"], DGC_TOKEN=read).stdout
                self.assertIn("anna", shown)
                self.assertIn("synthetic", shown)
                self.assertIn("revoked", dgc("token", "revoke", "anna", "--run", run.run).stdout)
                self.assertEqual(anna.wait(60), 1)
                self.assertIn("unknown or revoked", run.text("anna.err"))
            finally:
                if anna.poll() is None:
                    anna.kill()

    def test_a_model_of_the_members_own(self):
        with HubProcesses(DGC, self.folder, ["--own-model", "--lr", "0.1", "--steps", "10"]) as run:
            run.serve()
            line = dgc("token", "add", "ben", "--run", run.run).stdout
            call = r'dgc\.join\("https://127.0.0.1:\d+", model, data=…, pin="sha256:[0-9a-f]{64}"\)'
            self.assertRegex(line, rf"^DGC_TOKEN=ben\.\w+ +{call}\n$")
            self.refused(dgc("export", run.run, "--out", self.folder / "mesh"), "model of its members' own")
            run.join("a")
            self.assertEqual(run.members["a"].process.wait(30), 1)
            self.assertIn("dgc.join()", run.text("a.err"))

    def test_to_a_mesh_and_back(self):
        with HubProcesses(DGC, self.folder, [*SMALL, "--epochs", "40"]) as run:
            run.serve()
            run.join("a")
            self.until(lambda: (run.status() or {"round": 0})["round"] > 20)
            run.hub.send_signal(signal.SIGTERM)
            run.hub.wait(20)
            mesh = self.folder / "mesh"
            done = dgc("export", run.run, "--out", mesh)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"dgc train --resume {mesh}", done.stderr)
        trained = dgc("train", "--resume", mesh, "--workers", "2", "--launch", "threads", "--json", timeout=120)
        self.assertEqual(trained.returncode, 0, trained.stderr)
        result = json.loads(trained.stdout)["modes"]["dgc"]
        self.assertAlmostEqual(result["epochs"], 40, places=6)
        # Back: no step changes anything, so the evaluation is that of the mesh.
        with HubProcesses(DGC, self.folder / "back", [*SMALL, "--steps", "2", "--lr", "1e-12", "--from",
                                                      str(mesh / "dgc" / "checkpoints")]) as run:
            run.serve()
            run.join("a")
            self.ends(run)
            (mode,) = run.summary()["modes"].values()
            self.assertAlmostEqual(mode["loss"], result["loss"], places=5)
        # A checkpoint of another model.
        with HubProcesses(DGC, self.folder / "other", ["synthetic", "--model", "resnet8", "--examples", "64", "--steps", "2",
                                                       "--from", str(mesh / "dgc" / "checkpoints")]) as run:
            run.serve()
            run.join("a")
            self.ends(run)
            self.assertEqual(run.hub.returncode, 1)
            self.assertIn("checkpoint to begin with", run.text("hub.err"))

    def test_local_steps_and_private_data(self):
        settings = ["synthetic", "--model", "gpt-1m", "--hidden", "32", "--layers", "1", "--vocabulary", "64", "--context", "16",
                    "--examples", "128", "--batch", "8", "--workers", "2", "--mode", "dgc-local", "--local-steps", "3", "--steps", "12"]
        with HubProcesses(DGC, self.folder, [*settings, "--private-data"]) as run:
            run.serve()
            run.join("a")
            run.join("b")
            self.ends(run)
            self.assertEqual([m.process.returncode for m in run.members.values()], [0, 0], run.text("a.err"))
            self.assertEqual({run.result(n)["parameters_hash"] for n in "ab"}, {run.audit()["hash"]})
            first = json.loads((run.run / "dgc-local" / "metrics.jsonl").read_text().splitlines()[0])
            self.assertEqual(first["ratio"], 1 / 64)


class Churn(Case):
    def test_half_a_minute(self):
        """docs/hub.md has the figures of half an hour."""
        words = [sys.executable, "-B", str(SCRIPTS / "churn"), "--dgc", DGC, "--minutes", "0.4", "--epochs", "0.4", "--every", "0.7,1.5",
                 "--hub-kills", "1", "--members", "3", "--most", "5", "--no-calm", "--folder", str(self.folder)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
        self.assertEqual(ended.returncode, 0, ended.stdout[-3000:] + ended.stderr)
        figures = json.loads(ended.stdout[ended.stdout.index("\n{") + 1:])
        self.assertEqual(figures["leases"]["done"], 24_000)
        self.assertEqual(figures["events"].get("hub killed"), figures["events"].get("hub starts"))
        print(re.sub(r"\s+", " ", json.dumps(figures["events"])))


if __name__ == "__main__":
    part = [] if len(sys.argv) < 4 else [sys.argv[3]]
    result = unittest.main(argv=[sys.argv[0], *part], verbosity=2, exit=False).result
    if result.wasSuccessful():
        shutil.rmtree(HERE)
    else:
        print(f"everything is in {HERE}")
    sys.exit(0 if result.wasSuccessful() else 1)
