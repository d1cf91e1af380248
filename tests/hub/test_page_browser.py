#!/usr/bin/env python3
"""test_page_browser.py SERVE_TOY [SHOTS]: the hub's page as a browser shows it.

A real hub with members in its process (serve_toy.cpp), looked at in headless Chromium (skipped
without): figures come and change, a token is asked for, what strangers say stays text, the page goes
on after the hub was away, and nothing scrolls sideways on a phone. With SHOTS, screenshots are left
in that folder.
"""

import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from headless_browser import CHROMIUM, Browser

SERVE = sys.argv[1]
SHOTS = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
NASTY = "<img src=x onerror=alert(1)></script><b>&\"'"
LONG = "2001:db8:1234:5678:9abc:def0:1234:5678"
PATIENCE = 60  # s that a change may take; nothing is said of how quick it is


class Toy:
    """serve_toy in a folder of its own."""

    def __init__(self, folder: pathlib.Path, recipe: str) -> None:
        self.folder, self.recipe = folder, recipe
        self.port, self.token = 0, ""
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([SERVE, self.folder, str(self.port), self.recipe], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1])
        if not self.token:
            self.token = self.process.stdout.readline().split()[1]
            self.process.stdout.readline()  # that of a worker
        self.url = f"http://127.0.0.1:{self.port}/"

    def say(self, *lines: str) -> None:
        self.process.stdin.write("".join(line + "\n" for line in lines))
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class PageInBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.browser = Browser(allowed=("about:", "data:", "http://127.0.0.1:"))
        cls.addClassCleanup(cls.browser.close)

    def toy(self, *lines: str, recipe: str = "toy <b>run</b>") -> Toy:
        folder = self.folder / self.id().rpartition(".")[2]
        folder.mkdir()
        toy = Toy(folder, recipe)
        self.addCleanup(lambda: toy.process.poll() is None and toy.end())
        toy.say(*lines)
        return toy

    def open(self, toy: Toy, token: "str | None" = None, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.browser.call("Page.navigate", url="about:blank")  # another fragment alone loads nothing
        self.browser.open(f"{toy.url}#{toy.token if token is None else token}", width, height, dark=dark)

    def until(self, script: str, wanted=True):
        """Waits until the script gives what is wanted."""
        end = time.monotonic() + PATIENCE
        while (found := self.browser.run(script)) != wanted:
            if time.monotonic() > end:
                self.fail(f"{script} is {found!r}, not {wanted!r}; page: {self.text('body')[:600]}; errors: {self.browser.errors}")
            time.sleep(0.05)
        return found

    def text(self, selector: str) -> str:
        return self.browser.run(f"document.querySelector('{selector}').innerText")

    STATES = "Object.fromEntries([...document.querySelectorAll('#members tbody tr')].map(r => [r.cells[0].firstChild.textContent, r.dataset.is]))"
    ROUND = "Number((document.querySelector('#tiles b')?.textContent || '0').replace(',', ''))"

    def test_figures_come_and_change(self) -> None:
        toy = self.toy()
        self.open(toy)
        self.until("!document.getElementById('run').hidden")
        self.assertIn("Waiting for the first member", self.text("#notice"))
        self.assertEqual(self.text("#no-members"), "Nobody has joined yet.")
        self.assertEqual(self.text("#title"), "toy <b>run</b>")
        toy.say("join alice 192.0.2.1", "join bob 192.0.2.2")
        self.until(f"Object.keys({self.STATES}).join()", "alice,bob")
        self.until(f"{self.ROUND} > 1")
        first = self.browser.run(self.ROUND)
        self.until(f"{self.ROUND} > {first}")
        self.until("document.getElementById('notice').hidden")
        self.assertEqual(self.browser.run("document.getElementById('link').dataset.is"), "live")
        self.until("document.querySelectorAll('#charts .chart')[0].querySelector('.curve')?.getAttribute('d').includes('L') ?? false")
        self.until("document.querySelectorAll('#charts .chart')[1].querySelector('.marks') !== null")
        paths = self.browser.run("[...document.querySelectorAll('.chart path')].map(p => p.getAttribute('d')).join(' ')")
        self.assertNotRegex(paths, "NaN|Infinity|undefined")
        self.assertNotRegex(self.text("body"), "NaN|Infinity|undefined|null")
        row = self.text("#members tbody tr")
        self.assertIn("192.0.2.1", row)
        toy.say("leave alice")
        self.until(f"{self.STATES}.alice", "away")
        self.until("document.getElementById('log').innerText.includes('alice left')")
        toy.say("drop bob")
        self.until("document.getElementById('notice').innerText", "Paused: waiting for members.")
        self.assertIn("paused", self.browser.run("document.title"))
        # Times are those of a clock on the wall.
        at = self.browser.run("document.querySelector('#log time').getAttribute('datetime')")
        self.assertEqual(at[:2], "20")
        self.assertLess(abs(self.browser.run(f"Date.now() - Date.parse('{at}')")), 600_000)
        self.assertEqual(self.browser.errors, [])

    def test_values_are_read_while_they_change(self) -> None:
        toy = self.toy("join alice 192.0.2.1", "join bob 192.0.2.2")
        self.open(toy)
        plot = "document.querySelector('#charts .chart .plot')"
        self.until(f"{plot}.querySelector('.curve')?.getAttribute('d').includes('L') ?? false")
        self.browser.run(f"{plot}.focus()")
        for key in ("Home", "ArrowRight"):
            self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        self.assertIn("training", self.browser.run(f"{plot}.querySelector('.tip').textContent"))
        before = self.browser.run(f"{plot}.querySelector('.curve').getAttribute('d')")
        self.browser.run(f"window.before = {before!r}")
        self.until(f"{plot}.querySelector('.curve').getAttribute('d') !== window.before")
        self.assertFalse(self.browser.run(f"{plot}.querySelector('.tip').hidden"))
        self.assertTrue(self.browser.run(f"document.activeElement === {plot}"))

    def test_the_run_ends(self) -> None:
        toy = self.toy("join alice 192.0.2.1")
        self.open(toy)
        self.until(f"{self.ROUND} > 0")
        toy.say("full")
        self.until("document.getElementById('notice').className", "notes bad")
        self.assertIn("nothing more is committed", self.text("#notice"))
        self.assertIn("failed", self.browser.run("document.title"))

    def test_a_token_is_asked_for(self) -> None:
        toy = self.toy("join alice 192.0.2.1")
        for token in ("", "looker.wrong", "%00%", NASTY):
            self.open(toy, token=token)
            self.until("!document.getElementById('ask').hidden")
            self.assertTrue(self.browser.run("document.getElementById('run').hidden"))
            self.assertEqual(self.browser.run("document.activeElement.id"), "token")
        self.open(toy, token="looker.wrong")
        self.until("document.getElementById('ask-why').innerText", "This token is unknown or revoked.")
        self.browser.run(f"document.getElementById('token').value = ' {toy.token} '")
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
        self.until("!document.getElementById('run').hidden")
        self.assertTrue(self.browser.run("document.getElementById('ask').hidden"))
        self.assertEqual(self.browser.run("location.hash"), "#" + toy.token)

    def test_the_hub_goes_and_comes_back(self) -> None:
        toy = self.toy("join alice 192.0.2.1")
        self.open(toy)
        self.until(f"{self.ROUND} > 2")
        toy.end()
        self.until("document.getElementById('link').dataset.is", "away")
        self.assertIn("goes on by itself", self.text("#link"))
        self.assertFalse(self.browser.run("document.getElementById('run').hidden"))  # the last figures stay
        self.assertIn("Next try in", self.text("#again"))
        toy.start()
        self.until("document.getElementById('link').dataset.is", "live")
        self.assertTrue(self.browser.run("document.getElementById('again').hidden"))
        self.assertGreater(self.browser.run(self.ROUND), 2)
        self.assertEqual(self.text("#notice"), "Paused: waiting for members.")

    def test_nothing_is_asked_while_hidden(self) -> None:
        toy = self.toy("join alice 192.0.2.1")
        self.open(toy)
        self.until(f"{self.ROUND} > 0")
        show = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}); document.dispatchEvent(new Event('visibilitychange'))"
        count = "performance.getEntriesByType('resource').length"
        self.browser.run(show.format("true"))
        before = self.browser.run(count)
        time.sleep(3)  # longer than a page that is seen would wait
        self.assertEqual(self.browser.run(count), before)
        self.browser.run(show.format("false"))
        self.until(f"{count} > {before}")

    def test_what_strangers_say_stays_text(self) -> None:
        toy = self.toy(f"metric {NASTY}", f"join alice {NASTY}", "join bob 192.0.2.2", f"refuse {NASTY}")
        self.open(toy)
        self.until(f"document.getElementById('log').innerText.includes({NASTY!r})")
        self.until(f"document.getElementById('members').innerText.includes({NASTY!r})")
        self.until(f"document.getElementById('charts').textContent.includes({NASTY!r})")
        self.until(f"document.getElementById('tiles').innerText.includes({NASTY!r})")
        self.assertEqual(self.browser.run("document.images.length"), 0)
        self.assertEqual(self.browser.run("document.scripts.length"), 1)
        self.assertEqual(self.browser.run("document.querySelectorAll('main b:not(.value b):not(.log b):not(.tip b)').length"), 0)
        # Even a mistake could not make HTML of it, or run a script that is not the page's.
        self.assertEqual(self.browser.run("try { document.body.innerHTML = '<i>x</i>'; 'made' } catch { 'refused' }"), "refused")
        for script in ("document.createElement('i').setAttribute('onclick', 'window.ran = 1')", "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"):
            self.assertEqual(self.browser.run(f"try {{ {script}; window.ran ? 'ran' : 'did not' }} catch {{ 'refused' }}"), "refused")

    WIDE = """[...document.querySelectorAll('body *')].filter(e => {
        if (e.parentElement.closest('svg, thead') || e.tagName === 'THEAD' || !e.getClientRects().length) return false;
        const box = e.getBoundingClientRect();
        return box.right > innerWidth + 0.5 || box.left < -0.5;
    }).map(e => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 40))"""

    def test_fits_a_phone(self) -> None:
        long_name = "a-name-of-fifty-six-letters-" + "x" * 28
        toy = self.toy(f"join {long_name} {LONG}", "join bob 192.0.2.2", f"refuse {'long' * 60}", f"metric {'m' * 64}")
        for width in (320, 360, 768, 921, 1280):
            self.open(toy, width=width)
            self.until(f"Object.keys({self.STATES}).length", 2)
            self.until("document.querySelectorAll('#charts .chart')[1].querySelector('.marks') !== null")
            self.assertEqual(self.browser.run(self.WIDE), [], width)
            self.assertLessEqual(self.browser.run("document.scrollingElement.scrollWidth"), width)
            self.assertEqual(self.browser.run("document.documentElement.clientWidth"), width)
            self.open(toy, token="", width=width)
            self.assertEqual(self.browser.run(self.WIDE), [], width)

    def test_light_and_dark(self) -> None:
        toy = self.toy("join alice 192.0.2.1")
        found = []
        for dark in (False, True):
            self.open(toy, dark=dark)
            self.until("document.querySelector('#members .state') !== null")
            found.append(self.browser.run("""[document.documentElement, document.body, document.querySelector('.tile'),
                document.querySelector('.state')].flatMap(e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor])"""))
            background = [int(c) for c in found[-1][1][4:-1].split(",")]
            self.assertEqual(max(background) < 60, dark)
        self.assertNotEqual(found[0][-2], found[1][-2])

    def test_names_for_screen_readers(self) -> None:
        toy = self.toy("join alice 192.0.2.1")
        self.open(toy, width=360)
        self.until("document.querySelector('#members .state') !== null")
        tree = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]}
        roles = {role for role, _ in named}
        self.assertTrue({"table", "row", "rowheader", "cell", "columnheader", "heading", "status"} <= roles, roles)
        self.assertIn(("columnheader", "Round trip"), named)  # though cards have no heading to be seen
        self.assertIn(("region", "Who came and went"), named)
        self.assertFalse([name for role, name in named if role in ("button", "textbox", "region", "progressbar") and not name])

    def test_shots(self) -> None:
        if SHOTS is None:
            self.skipTest("no folder for screenshots")
        toy = self.toy("join atlas 203.0.113.7", "join lisbon-1 198.51.100.24", "join lisbon-2 198.51.100.25", f"join home {LONG}", recipe="fashion")
        self.open(toy)
        self.until(f"{self.ROUND} > 30")
        toy.say("drop lisbon-2", "refuse 192.0.2.200")
        self.until(f"{self.ROUND} > 45")
        toy.say("leave home")
        self.until(f"{self.ROUND} > 70")
        for name, width in (("desktop", 1280), ("tablet", 800), ("phone", 360)):
            for dark in (False, True):
                self.open(toy, width=width, dark=dark)
                self.until("document.querySelectorAll('#charts .chart')[1].querySelector('.marks') !== null")
                self.browser.shot(SHOTS, f"{name}-{'dark' if dark else 'light'}")
        self.open(toy, token="", width=360)
        self.until("!document.getElementById('ask').hidden")
        self.browser.shot(SHOTS, "ask")
        self.open(toy)
        self.until("document.querySelector('#members .state') !== null")
        toy.say("full")
        self.until("document.getElementById('notice').className", "notes bad")
        self.browser.shot(SHOTS, "failed")
        toy.end()
        self.until("document.getElementById('link').dataset.is", "away")
        self.browser.shot(SHOTS, "away")
        self.readme_picture()

    def readme_picture(self) -> None:
        """docs/hub-page.png: a screen and a phone side by side."""
        both = SHOTS / "hub-page.html"
        both.write_text("""<!DOCTYPE html><style>body { margin: 0; display: flex; gap: 14px; background: #8a939c; padding: 14px; height: 592px }
            div { overflow: hidden; border-radius: 8px } img { display: block }</style>
            <div><img src="desktop-light.png" style="width: 640px"></div><div><img src="phone-dark.png" style="width: 240px"></div>""")
        self.browser.allowed += ("file:",)
        self.browser.open(both, 922, 620)
        self.browser.shot(SHOTS, "hub-page")


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: chromium is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
