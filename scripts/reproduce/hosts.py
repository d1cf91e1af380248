"""Hosts on one machine: network namespaces on a bridge, each behind a link of a given rate.

    with Hosts(4, rate=1e9) as hosts:
        results = hosts.run(lambda i: ["iperf3", ...], env=lambda i: {"RANK": str(i)}, timeout=60)
        print(hosts.counters(0).payload_sent)

A link is a veth pair with a token bucket (tc tbf) at each end. What a host sends and what it
receives are limited alike, as by a full-duplex Ethernet port. Links have no delay of their own. The
bridge is in a namespace of its own: nothing of the machine's network changes. Needs root, iproute2
and a kernel with veth, bridge and sch_tbf.

Everything goes away at the end of the block, also after an exception, Ctrl-C, SIGTERM or SIGHUP.
What a run that was killed (SIGKILL) left behind is removed by the next run with the same prefix.
"""
import ctypes
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Every packet of an open connection carries these headers beside payload: Ethernet 14, IP 20, TCP
# 20, and TCP's timestamps 12. A packet that the kernel has not cut yet (GSO) counts once, with one
# set of headers.
HEADER_BYTES = 66
# A port of the switch can hold back this much. Packets beyond it are dropped, as in small switches.
QUEUE_BYTES = 2 << 20
MTU = 1500
# The kernel cuts packets into frames of the MTU late. It hands them over in pieces no larger than
# this. A token bucket has to hold a piece, and a full bucket lets its contents through at no cost.
# So pieces are smaller on slow links, down to one frame: the messages of a step are small there.
PIECE_BYTES = 16384
FRAME_BYTES = 1600
NETNS_FILES = pathlib.Path("/etc/netns")


class HostsError(Exception):
    """Says what could not be done, and what to do about it."""


@dataclasses.dataclass(frozen=True)
class Counters:
    """Counters of a host's interface since it was made."""
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    @property
    def payload_sent(self) -> int:
        return self.sent_bytes - HEADER_BYTES * self.sent_packets

    @property
    def payload_received(self) -> int:
        return self.received_bytes - HEADER_BYTES * self.received_packets

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))


@dataclasses.dataclass
class Result:
    """What came of one host's command."""
    host: int
    status: int  # negative: the signal that ended it
    output: str  # stdout and stderr


def _command(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise HostsError(f"`{words[0]}` is missing: scripts/install-packages network") from None
    if done.returncode != 0:
        raise HostsError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def python_with_torch() -> str:
    """This Python if it has PyTorch, else Debian's."""
    here = subprocess.run([sys.executable, "-c", "import torch"], check=False, stderr=subprocess.DEVNULL)
    return sys.executable if here.returncode == 0 else "/usr/bin/python3"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Hosts:
    """`count` hosts with addresses 10.77.0.1 and so on. `rate` is in bit/s each way; None means no
    limit. `prefix` names the namespaces: two sets of hosts at the same time need two prefixes.

    With `delay_ms` each frame takes that long from host to host. The bridge is then a process in
    user space (bench/slow_switch.cpp). It can lose frames: `drop`
    is a share of all, `cuts` are (host, from, to) in seconds since the hosts were made. With
    `slow_start=False` a connection that was idle goes on as fast as it was.

    With `hostname="node"` the hosts are called node0, node1 and so on, and find each other by these
    names. As Debian's installer sets it up, a host's own name is 127.0.1.1."""

    def __init__(self, count: int, rate: float | None = None, prefix: str = "dgc", hostname: str | None = None,
                 delay_ms: float = 0.0, drop: float = 0.0, cuts: tuple = (), slow_start: bool = True):
        if not 1 <= count <= 200:
            raise HostsError(f"{count} hosts: 1 to 200 are possible")
        self.count, self.rate, self.prefix, self.hostname = count, rate, prefix, hostname
        if (drop or cuts) and not delay_ms:
            raise HostsError("frames are lost by the switch in user space: give a delay, too")
        self.delay_ms, self.drop, self.cuts, self.slow_start = delay_ms, drop, cuts, slow_start
        self._limited = False  # the devices have a token bucket now
        self._lock = None
        self._anchors: list[subprocess.Popen] = []
        self._handlers: dict[int, object] = {}

    def name(self, host: int) -> str:
        return f"{self.prefix}-{host}"

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    # Making and removing.

    def __enter__(self) -> "Hosts":
        if os.geteuid() != 0:
            raise HostsError("network namespaces need root: run with sudo")
        self._take_prefix()
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._on_signal)
        try:
            self._remove()
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception) -> None:
        # A second signal must not leave half of it behind.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
        try:
            self._remove()
            for anchor in self._anchors:
                anchor.wait()
            self._anchors.clear()
            self._lock.close()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.signal(signal.SIGINT, interrupt)

    @staticmethod
    def _on_signal(number: int, _frame) -> None:
        raise SystemExit(128 + number)

    def _take_prefix(self) -> None:
        path = pathlib.Path("/run") / f"hosts-{self.prefix}.lock"
        self._lock = open(path, "w", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise HostsError(f"hosts named {self.prefix}-* are in use by another run: "
                             "wait for it, or choose another prefix") from None

    def _remove(self) -> None:
        """Removes all namespaces of this prefix, with the processes in them."""
        for entry in json.loads(_command("ip", "-j", "netns", "list") or "[]"):
            name = entry["name"]
            kind = name.removeprefix(f"{self.prefix}-")
            if kind == name or not (kind == "switch" or kind.isdigit()):
                continue
            for pid in _command("ip", "netns", "pids", name).split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            _command("ip", "netns", "delete", name)
        for folder in NETNS_FILES.glob(f"{self.prefix}-[0-9]*"):
            if folder.name.removeprefix(f"{self.prefix}-").isdigit():
                shutil.rmtree(folder)
                if not any(NETNS_FILES.iterdir()):
                    NETNS_FILES.rmdir()

    def _write_names(self, host: int) -> None:
        """`ip netns exec` puts the files of this folder in the place of those of /etc."""
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {self.hostname}{host}"]
        lines += [f"{self.address(i)} {self.hostname}{i}" for i in range(self.count) if i != host]
        folder = NETNS_FILES / self.name(host)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="ascii")

    def _make(self) -> None:
        switch = f"{self.prefix}-switch"
        _command("ip", "netns", "add", switch)
        if not self.delay_ms:
            _command("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            _command("ip", "-n", switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            name, port = self.name(host), f"port{host}"
            _command("ip", "netns", "add", name)
            if self.hostname is not None:
                self._write_names(host)
            _command("ip", "-n", switch, "link", "add", port, "mtu", str(MTU), "type", "veth",
                     "peer", "name", "eth0", "mtu", str(MTU), "netns", name)
            _command("ip", "-n", switch, "link", "set", port, *(() if self.delay_ms else ("master", "bridge")), "up")
            _command("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _command("ip", "-n", name, "link", "set", interface, "up")
            # Linux's default, whatever this machine uses. BBR takes waiting for a core for waiting
            # for the network.
            _command("ip", "-n", name, "route", "replace", "10.77.0.0/24", "dev", "eth0",
                     "src", self.address(host), "congctl", "cubic")
            if not self.slow_start:
                _command("ip", "netns", "exec", name, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/tcp_slow_start_after_idle")
            self._anchors.append(self.start(host, ["sleep", "infinity"], output=subprocess.DEVNULL))
        # Ports learn and forward at once, but a device comes up later.
        for host in range(self.count):
            self._wait_until_up(host)
        self.set_rate(self.rate)
        if self.delay_ms:
            self._start_slow_switch()

    def _start_slow_switch(self) -> None:
        program = pathlib.Path(__file__).resolve().parents[2] / "build" / "slow_switch"
        if not program.exists():
            raise HostsError(f"{program} is missing: build it with `make`")
        for host in range(self.count):
            _command("ip", "netns", "exec", self.name(host), str(program), "--offloads-off", "eth0")
        ports = [f"port{host}" for host in range(self.count)]
        losses = ["--drop", str(self.drop)]
        for host, begin, end in self.cuts:
            losses += ["--cut", f"port{host}:{begin}:{end}"]
        process = subprocess.Popen(["ip", "netns", "exec", f"{self.prefix}-switch", str(program), *losses,
                                    "--delay-ms", str(self.delay_ms), *ports], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=_die_with_parent)
        if process.stdout.readline() != b"ready\n":
            raise HostsError("the slow switch did not start: does this kernel have packet sockets (AF_PACKET)?")
        self._anchors.append(process)

    def _devices(self, host: int) -> list[tuple[str, str]]:
        """Both ends of a host's link: (namespace, device)."""
        return [(self.name(host), "eth0"), (f"{self.prefix}-switch", f"port{host}")]

    def _wait_until_up(self, host: int) -> None:
        for _ in range(100):
            link = json.loads(_command("ip", "-n", self.name(host), "-j", "link", "show", "eth0"))[0]
            if link["operstate"] == "UP":
                return
            time.sleep(0.02)
        raise HostsError(f"the link of {self.name(host)} does not come up; look at `ip -n {self.name(host)} link`")

    # Using.

    def set_rate(self, rate: float | None, only: int | None = None) -> None:
        """Sets the rate of all links, in bit/s; None takes the limit away. Works while commands run. With `only`, of
        that host's link, which has to have had a rate."""
        # Half a millisecond of data. A timer that is late by more than that costs throughput.
        burst = rate / 8 * 0.0005 if rate is not None else math.inf
        piece = int(min(PIECE_BYTES, max(FRAME_BYTES, burst / 2)))
        for host in range(self.count) if only is None else [only]:
            for namespace, device in self._devices(host):
                _command("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(piece))
                if rate is not None:
                    _command("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
                             "rate", f"{rate:.0f}bit", "burst", str(int(max(2 * piece, burst))), "limit", str(QUEUE_BYTES))
                elif self._limited:
                    _command("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root")
        if only is None:
            self.rate, self._limited = rate, rate is not None

    def start(self, host: int, command: list[str], env: dict[str, str] | None = None, output=None) -> subprocess.Popen:
        """Starts a command on a host. The command ends with this process at the latest."""
        if self.hostname is not None:
            # A host name belongs to a namespace of another kind (UTS).
            named = 'hostname "$0" && exec "$@"'
            command = ["unshare", "--uts", "sh", "-c", named, f"{self.hostname}{host}", *command]
        return subprocess.Popen(["ip", "netns", "exec", self.name(host), *command],
                                env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=output, preexec_fn=_die_with_parent)

    def run(self, command, env=lambda host: {}, timeout: float = 600.0, poll=None, interval: float = 0.01) -> list[Result]:
        """Runs command(host) with env(host) on every host. Returns what came of each. When one
        fails, the others have 10 s to notice. `poll(pids)` is called every `interval` seconds. When
        it returns true, the commands are ended (status -9)."""
        deadline = time.monotonic() + timeout
        files = [tempfile.TemporaryFile(mode="w+") for _ in range(self.count)]
        processes = []
        try:
            for host in range(self.count):
                processes.append(self.start(host, command(host), env(host), files[host]))
            while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
                if any(p.poll() not in (None, 0) for p in processes):
                    deadline = min(deadline, time.monotonic() + 10)
                if poll is not None and poll([p.pid for p in processes]):
                    break
                time.sleep(interval)
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
                p.wait()
        results = []
        for host, (process, file) in enumerate(zip(processes, files)):
            file.seek(0)
            results.append(Result(host, process.returncode, file.read()))
            file.close()
        return results

    def counters(self, host: int) -> Counters:
        """Counters of a host now. Cheap: reads a file, starts nothing."""
        text = pathlib.Path(f"/proc/{self._anchors[host].pid}/net/dev").read_text(encoding="ascii")
        for line in text.splitlines():
            device, _, numbers = line.partition(":")
            if device.strip() == "eth0":
                n = [int(word) for word in numbers.split()]
                return Counters(sent_bytes=n[8], sent_packets=n[9], received_bytes=n[0], received_packets=n[1])
        raise HostsError(f"{self.name(host)} has no eth0 any more")

    def all_counters(self) -> list[Counters]:
        return [self.counters(host) for host in range(self.count)]

    def dropped_packets(self) -> int:
        """Packets that all queues have dropped since they were made; 0 where nothing is limited."""
        total = 0
        for namespace in [f"{self.prefix}-switch"] + [self.name(host) for host in range(self.count)]:
            for queue in json.loads(_command("tc", "-n", namespace, "-j", "-s", "qdisc", "show")):
                total += queue["drops"] if queue["kind"] == "tbf" else 0
        return total
