"""A hub and its members as processes: `dgc serve` and `dgc join`, for scripts and tests.

    with HubProcesses(dgc, folder, ["fashion", "--preset", "small"]) as run:
        run.serve()
        run.join("a")
        run.wait(120)

Whatever still runs at the end of the block is killed, also after an exception.
"""
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Member:
    """A `dgc join`, which may end and begin again by the same name."""

    def __init__(self, name, start):
        self.name, self._start = name, start
        self.process, self.lives, self.results = None, 0, []

    def start(self):
        self.process = self._start(self)
        self.lives += 1

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)


class HubProcesses:
    """`settings` are the words of `dgc serve`. `launch(who, words, env, out, err)` starts a process, by default on
    this machine; `who` is "hub" or a member's name. `host` is what members call the hub."""

    def __init__(self, dgc, folder, settings, host="127.0.0.1", port=None, launch=None, join=()):
        self.dgc, self.folder, self.settings = str(dgc), pathlib.Path(folder), list(settings)
        self.host, self.port = host, port or free_port()
        self.join_words = list(join)
        self._launch = launch or self._here
        self.run = self.folder / "run"
        self.hub, self.members, self.facts = None, {}, None
        self.hub_lives = 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.hub, *(m.process for m in self.members.values())]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    @staticmethod
    def _here(_who, words, env, out, err):
        return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                preexec_fn=_die_with_parent)

    def _start(self, who, words, **more):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}
        out = open(self.folder / f"{who}.out", "ab")
        err = open(self.folder / f"{who}.err", "ab")
        with out, err:
            return self._launch(who, [self.dgc, *words], env, out, err)

    # The hub.

    def serve(self, timeout=60):
        """Starts it, or starts it again, and waits until it listens."""
        first = not self.hub_lives
        words = ["serve", *(self.settings + ["--out", str(self.run)] if first else ["--resume", str(self.run)])]
        lines = self._lines("hub.out")
        self.hub = self._start("hub", [*words, "--json", "--address", self.host, "--port", str(self.port)])
        self.hub_lives += 1
        until = time.monotonic() + timeout
        while len(self._lines("hub.out")) == lines or not self._lines("hub.out")[len(lines):]:
            if self.hub.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the hub does not start:\n" + self.text("hub.err"))
            time.sleep(0.02)
        if first:
            self.facts = json.loads(self._lines("hub.out")[0])

    def kill_hub(self):
        self.hub.kill()
        self.hub.wait()

    # Members.

    def join(self, name, port=None, words=(), **env):
        """`port`: of what stands between it and the hub."""
        def start(member):
            url = f"https://{self.host}:{port or self.port}"
            return self._start(name, ["join", url, "--pin", self.facts["pin"], "--name", name, "--threads", "1", "--json",
                                      "--state", str(self.folder / "state" / name), *self.join_words, *words],
                               DGC_TOKEN=self.facts["token"], **env)
        member = self.members.setdefault(name, Member(name, start))
        member.start()
        return member

    def status(self):
        """What the page shows; None where the hub is away."""
        env = {**os.environ, "DGC_TOKEN": self.facts["read_token"]}
        asked = subprocess.run([self.dgc, "status", self.facts["url"], "--pin", self.facts["pin"], "--json"],
                               env=env, capture_output=True, text=True, timeout=60)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    # The end.

    def wait(self, timeout):
        """Until the hub and all members that run have ended. False where they have not. Who began when the hub was
        gone already looks for it for ever: such a member is told to leave."""
        try:
            self.hub.wait(timeout)
            time.sleep(1)
            for process in [m.process for m in self.members.values() if m.alive()]:
                process.send_signal(signal.SIGTERM)
            for member in self.members.values():
                member.process.wait(60)
        except subprocess.TimeoutExpired:
            return False
        return True

    def text(self, name):
        file = self.folder / name
        return file.read_text(errors="replace") if file.exists() else ""

    def _lines(self, name):
        return [line for line in self.text(name).splitlines() if line.startswith("{")]

    def result(self, name):
        """What a member printed in its last life."""
        text = self.text(f"{name}.out")
        return json.loads(text[text.rindex("\n{\n") + 1 if "\n{\n" in text else text.index("{"):])

    def summary(self):
        return json.loads((self.run / "summary.json").read_text())

    def audit(self):
        """The commits, done again by `dgc inspect`."""
        asked = subprocess.run([self.dgc, "inspect", str(self.run), "--json"], capture_output=True, text=True)
        if asked.returncode:
            raise RuntimeError(asked.stderr)
        return json.loads(asked.stdout)


class Cable:
    """A TCP connection between a member and the hub that can be cut: nothing passes, and nobody hears of it."""

    def __init__(self, to):
        self._to, self._cut, self._open = to, False, True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self._cut = True

    def heal(self):
        """What was open is gone, as after a change of address."""
        self._cut = False
        for pair in self._pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._pairs.clear()

    def close(self):
        self._open = False
        self._listener.close()
        self.heal()

    def _accept(self):
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        while self._cut:
            time.sleep(0.05)
        try:
            far = socket.create_connection(("127.0.0.1", self._to), timeout=5)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        self._pairs.append((near, far))
        for a, b in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a, b):
        try:
            while data := a.recv(65536):
                while self._cut:
                    time.sleep(0.05)
                b.sendall(data)
        except OSError:
            pass
        for end in (a, b):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
