#!/usr/bin/env python3
"""Strangers on every port of a run that has a secret: test_strangers.py DGC

Before the workers have met and while they train, each kind of stranger comes again and again to the
store and to every port on which a worker listens. The run ends as if nobody had come. Signals end it
while strangers hold their connections.
"""
import hashlib
import hmac
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from ports import free_port

DGC = sys.argv[1]
HERE = pathlib.Path(tempfile.mkdtemp(prefix="dgc-strangers-"))
SECRET = "a secret for this test"
WORKERS = 3
TRAIN = ["train", "synthetic", "--algorithm", "allgather", "--model", "cnn", "--examples", "96", "--batch", "4", "--warmup-epochs",
         "1", "--lr", "0.01", "--log-every", "1", "--checkpoint-every", "1000"]
BEGUN = time.monotonic()
failures = []


def check(what, good, detail=""):
    print(f"{time.monotonic() - BEGUN:6.1f} s  {'ok    ' if good else 'FAILED'}  {what}", flush=True)
    if not good:
        failures.append(what)
        print(detail)


def listening(pid):
    """The (host, port) pairs on which a process listens."""
    inodes = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
            if found:
                inodes.add(found[1])
    except OSError:
        pass  # it has ended, or closed one
    places = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            host, port = words[1].split(":")
            places.add((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return places


class Run:
    """The workers of a run, which meet at an address."""

    def __init__(self, name, steps):
        self.folder = HERE / name
        self.port = free_port()
        self.steps = steps
        self.ranks = {}

    def start(self, *ranks, secret=SECRET):
        for rank in ranks:
            names = ("DGC_STORE", "DGC_INTERFACE", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
            env = {k: v for k, v in os.environ.items() if k not in names}
            env |= {"RANK": str(rank), "WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(self.port), "DGC_SECRET": secret, "DGC_INTERFACE": "lo"}
            self.ranks[rank] = subprocess.Popen(
                [DGC, *TRAIN, "--steps", str(self.steps), "--timeout", "120", "--out", self.folder],
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def ports(self):
        return set().union(*(listening(p.pid) for p in list(self.ranks.values())))

    def wait(self, seconds=240):
        """Exit statuses and what was said."""
        deadline = time.monotonic() + seconds
        said = {rank: p.communicate(timeout=max(1, deadline - time.monotonic()))[1]
                for rank, p in sorted(self.ranks.items())}
        return [p.returncode for _, p in sorted(self.ranks.items())], said

    def until(self, what, condition):
        deadline = time.monotonic() + 120
        while not condition():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.ranks.values()):
                check(f"{self.folder.name}: {what}", False, self.kill())
                sys.exit(1)
            time.sleep(0.02)

    def kill(self):
        for p in self.ranks.values():
            p.kill()
        return "\n".join(p.communicate()[1] for p in self.ranks.values())

    def trains(self):
        return any(self.folder.glob("**/metrics*.jsonl")) and self.measured() > 2

    def measured(self):
        return sum(len(f.read_text().splitlines()) for f in self.folder.glob("**/metrics*.jsonl"))

    def hash(self):
        summary = json.loads((self.folder / "summary.json").read_text())
        return {mode: result["parameters_hash"] for mode, result in summary["modes"].items()}


def connect(place):
    s = socket.create_connection(place, timeout=5)
    s.settimeout(0.5)
    return s


def read(s, size):
    data = b""
    while len(data) < size:
        more = s.recv(size - len(data))
        if not more:
            break
        data += more
    return data


class Client:
    """Speaks the store's protocol, with a secret that may be the wrong one."""

    def __init__(self, place, secret):
        self.socket = connect(place)
        self.secret = secret.encode()
        self.nonces = [os.urandom(32), b""]
        self.sent = 0
        self.socket.sendall(b"dgc-hi-1" + struct.pack("<II", 1, 0) + self.nonces[0])
        self.nonces[1] = read(self.socket, 40)[8:]
        self.socket.sendall(self.code(b"connector"))
        self.proved = read(self.socket, 33)[:1] == b"\1"

    @staticmethod
    def mac(key, *parts):
        text = b"".join(struct.pack("<Q", len(p)) + p for p in parts)
        return hmac.new(key, text, hashlib.sha256).digest()

    def code(self, speaker):
        return self.mac(self.secret, speaker, b"dgc store 1", struct.pack("<II", 1, 0), *self.nonces)

    def ask(self, operation, key, value=b""):
        contents = struct.pack("<BH", operation, len(key)) + key + value
        seal = self.mac(self.code(b"messages of the connector"), struct.pack("<Q", self.sent), contents)
        self.sent += 1
        self.socket.sendall(struct.pack("<I", len(contents)) + contents + seal)
        size = read(self.socket, 4)
        return read(self.socket, struct.unpack("<I", size)[0]) if len(size) == 4 else b""


def a_byte_and_silence(place, held):
    s = connect(place)
    s.sendall(b"\0")
    held.append(s)


def random_bytes(place, held):
    s = connect(place)
    s.sendall(os.urandom(10_000))
    held.append(s)


def http(place, held):
    s = connect(place)
    s.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
    held.append(s)


def thousand_connects(place, held):
    for _ in range(5):
        many = [socket.create_connection(place, timeout=5) for _ in range(200)]
        for s in many:
            s.close()


def huge_lengths(place, held):
    s = connect(place)
    s.sendall(struct.pack("<QQQQQQ", *[2**63 - 1] * 6) + b"\xff" * 200)
    held.append(s)
    t = connect(place)
    t.sendall(b"dgc-hi-1" + b"\xff" * 40 + b"\xff" * 36)
    held.append(t)


def connect_and_close(place, held):
    connect(place).close()


def keys_of_others(place, held):
    for secret in ("", "another secret"):
        client = Client(place, secret)
        held.append(client.socket)
        if client.proved:
            check("a client without the secret is refused", False)
        for rank in range(WORKERS):
            for operation, what in ((1, "failed"), (3, "address"), (1, "address"), (1, "late")):
                client.ask(operation, f"dgc/{what}.{rank}".encode(), b"8\nmade up by a stranger")


STRANGERS = [a_byte_and_silence, random_bytes, http, thousand_connects, huge_lengths, connect_and_close,
             keys_of_others]


class Siege:
    """Strangers of one kind, again and again, on all ports of a run. They hold what they are let."""

    MOST = 300

    def __init__(self, run, *kinds):
        self.run, self.kinds, self.held, self.visits = run, kinds, [], 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.besiege)
        self.thread.start()

    def besiege(self):
        while not self.over.is_set():
            for place in self.run.ports():
                for kind in self.kinds:
                    try:
                        kind(place, self.held)
                    except OSError:
                        pass  # dropped, or the port is closed
                    self.visits += 1
            while len(self.held) > self.MOST:
                self.held.pop(0).close()
            self.over.wait(0.02)

    def come(self, times):
        """Until that many more have come."""
        until = self.visits + times
        return lambda: self.visits >= until

    def end(self):
        self.over.set()
        self.thread.join()
        for s in self.held:
            s.close()


def main():
    clean = Run("clean", 150)
    clean.start(0, 1)
    clean.until("two ranks wait", lambda: len(clean.ports()) >= 3)
    places = clean.ports()
    check("a rank has one port, rank 0 that of the store too, all on the loopback address",
          len(places) == 3 and {host for host, _ in places} == {"127.0.0.1"}, places)
    insider = Client(("127.0.0.1", clean.port), SECRET)
    answer = insider.ask(2, b"dgc/address.0")
    check("with the secret, the strangers' client would be let in", insider.proved and
          answer[:1] == b"\0" and b"127.0.0.1" in answer, answer)
    insider.socket.close()

    # A worker that has another secret is told so, and the others go on waiting.
    wrong = Run("wrong", 150)
    wrong.port = clean.port
    wrong.start(2, secret="another secret")
    statuses, said = wrong.wait()
    check("a worker with another secret fails and says why", statuses == [1] and
          "DGC_SECRET" in said[2] and f"127.0.0.1:{clean.port}" in said[2], said)
    check("the others wait for the right one", all(p.poll() is None for p in clean.ranks.values()))
    clean.start(2)
    clean.until("it trains", clean.trains)
    check("while it trains only the store listens", clean.ports() == {("127.0.0.1", clean.port)},
          clean.ports())
    statuses, said = clean.wait()
    check("a run without strangers ends well", statuses == [0] * WORKERS, said)
    expected = clean.hash()

    for kind in STRANGERS:
        run = Run(kind.__name__, 150)
        siege = Siege(run, kind)
        run.start(0, 1)
        run.until("two ranks wait", lambda run=run: len(run.ports()) >= 3)
        run.until("strangers come before it begins", siege.come(6))
        run.start(2)
        run.until("it trains", run.trains)
        before, steps = siege.visits, run.measured()
        statuses, said = run.wait()
        siege.end()
        during = siege.visits - before
        check(f"{kind.__name__}: exit 0 and the right hash; {before} came before, {during} during the "
              f"training", statuses == [0] * WORKERS and run.hash() == expected and during > 0,
              (said, steps))

    # Signals.
    run = Run("signals", 100_000)
    siege = Siege(run, a_byte_and_silence, random_bytes, keys_of_others)
    run.start(*range(WORKERS))
    run.until("it trains", run.trains)
    run.until("strangers hold their connections", siege.come(30))
    told = time.monotonic()
    for p in run.ranks.values():
        p.send_signal(signal.SIGTERM)
    statuses, said = run.wait()
    check(f"SIGTERM ends every rank with strangers connected, in {time.monotonic() - told:.2f} s",
          statuses == [128 + signal.SIGTERM] * WORKERS, (statuses, said))
    siege.end()

    run = Run("early", 150)
    siege = Siege(run, a_byte_and_silence)
    run.start(0, 1)
    run.until("two ranks wait", lambda: len(run.ports()) >= 3)
    run.until("strangers come", siege.come(10))
    told = time.monotonic()
    for p in run.ranks.values():
        p.send_signal(signal.SIGTERM)
    statuses, said = run.wait()
    check(f"and while ranks wait for others, in {time.monotonic() - told:.2f} s",
          statuses == [-signal.SIGTERM] * 2, (statuses, said))
    siege.end()


try:
    main()
finally:
    shutil.rmtree(HERE)
print(f"{len(failures)} failed" if failures else "all well")
sys.exit(1 if failures else 0)
