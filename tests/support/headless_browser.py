"""A headless Chromium for tests, driven through the DevTools protocol over a pipe."""

import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A Chromium of our own, spoken to over a pipe: no port, no library, nothing left behind."""

    def __init__(self, allowed: tuple[str, ...] = ("file:", "about:")) -> None:
        """What begins otherwise than `allowed` is an error to ask the network for."""
        self.allowed = allowed
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.answers, from_write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        high = [os.dup2(fd, n, inheritable=True) for fd, n in ((to_read, 203), (from_write, 204))]
        shell = 'exec "$@" 3<&203 4>&204 203<&- 204>&-'
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--hide-scrollbars", f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"]
        # Descriptors above 9 in redirections are bash's.
        self.process = subprocess.Popen(["bash", "-c", shell, "chromium", *command], pass_fds=high, start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (*high, to_read, from_write):
            os.close(fd)
        self.pending = b""
        self.number = 0
        self.session = None
        self.errors: list[str] = []
        self.loaded: set[str] = set()  # loads that are complete; the event may come before the answer
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def receive(self) -> dict:
        while b"\0" not in self.pending:
            if not select.select([self.answers], [], [], 120)[0]:
                raise RuntimeError("the browser has said nothing for two minutes")
            some = os.read(self.answers, 1 << 16)
            if not some:
                raise RuntimeError("the browser has ended")
            self.pending += some
        text, self.pending = self.pending.split(b"\0", 1)
        message = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self.loaded.add(params["loaderId"])
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(self.allowed):
            self.errors.append("asked the network for " + params["request"]["url"])
        return message

    def call(self, method: str, **params) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script: str):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def open(self, page: "pathlib.Path | str", width: int, height: int, dark: bool = False, scripts: bool = True) -> None:
        self.errors.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        url = page if isinstance(page, str) else page.resolve().as_uri()
        load = self.call("Page.navigate", url=url)["loaderId"]
        while load not in self.loaded:
            self.receive()
        if scripts:  # two frames: sizes are observed, charts drawn
            self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def shot(self, folder: pathlib.Path | None, name: str) -> None:
        """A picture of the whole page, if there is a folder to put it in."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        (folder / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(20)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            # The session is ours alone: whatever of it is left goes.
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            os.close(self.to)
            os.close(self.answers)
            self.profile.cleanup()
