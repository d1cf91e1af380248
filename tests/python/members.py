"""Members of a hub for tests: `dgc serve` and forked processes that train with dgc.join. The program
that imports this has the path of the command as its first argument."""

import json
import os
import signal
import subprocess
import sys
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

import dgc  # noqa: E402

DGC = sys.argv[1]
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

    def __init__(self, folder, *switches, **options):
        self.folder, self._port = folder / "run", 0
        flags = {
            "lr": 0.03,
            "workers": 2,
            "batch": 16,
            "save-every": 4,
            "evaluate-every": 10,
            **options,
        }
        words = [*switches, *(f"--{name}={value}" for name, value in flags.items())]
        self._start("--own-model", "--out", self.folder, *words)

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

    def stop(self):
        """What it says of the run."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=60)
        return json.loads(out)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


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
        self.said, self.status = [], None

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
        Worker._ours -= {self._allow, self._lines.fileno()}
        os.close(self._allow)
        for line in self._lines:
            self.said.append(json.loads(line))
        self._lines.close()
        self.status = os.waitpid(self.pid, 0)[1]
        return self.status, self.said

    def kill(self):
        if self.status is None:
            self.signal(signal.SIGKILL)
            self.end()


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
    dgc.member._GOOD_BYE = more.pop("patience", dgc.member._GOOD_BYE)
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
        state = list(member.optimizer.state.values()) if inner is not None else []
        place.say(
            "work",
            sequence=sequence,
            epoch=work.epoch,
            indices=work.indices.tolist(),
            steps=float(state[0]["step"]) if state else 0,
        )
        place.wait()
        assert model.training
        if inner is None:
            loss = loss_of(model, work.indices)
            loss.backward()
        else:
            for chosen in work.batches():
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
