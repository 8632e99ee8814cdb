"""A real Chromium without a screen, driven through its own driver: W3C WebDriver over HTTP.

Debian has both: `apt-get install chromium chromium-driver`. Where they are missing, `open_browser`
skips the test and says so.
"""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: How the protocol names an element. Source: w3.org/TR/webdriver2, section 12.
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window."""

    def __init__(self, address: str, session: str) -> None:
        self._root = f"{address}/session/{session}"

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self.send("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script of the test returns."""
        return self.send("POST", "/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        """Press an element with the pointer."""
        self.send("POST", f"/element/{self._find(selector)}/click", {})

    @contextmanager
    def pressed(self, selector: str) -> Iterator[None]:
        """Hold the pointer down on an element until the block ends, then let it go."""
        over = {_ELEMENT: self._find(selector)}
        steps = [
            {"type": "pointerMove", "x": 0, "y": 0, "origin": over},
            {"type": "pointerDown", "button": 0},
        ]
        self._point(steps)
        yield
        self._point([{"type": "pointerUp", "button": 0}])

    def _point(self, steps: list[dict[str, Any]]) -> None:
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self.send("POST", "/actions", {"actions": [{**pointer, "actions": steps}]})

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.send("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def _find(self, selector: str) -> str:
        found = self.send("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    @property
    def text(self) -> str:
        """What is to be read."""
        return str(self.run("return document.body.innerText"))

    @property
    def url(self) -> str:
        return str(self.send("GET", "/url"))

    def wait(self, until: Callable[[], object], seconds: float = 30.0) -> float:
        """Wait for what is watched; how long that took, in seconds."""
        start = time.monotonic()
        while not until():
            assert time.monotonic() - start < seconds, self.text[:4000]
            time.sleep(0.05)
        return time.monotonic() - start

    def set_size(self, width: int, height: int) -> None:
        """Make the page so many pixels wide and high."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def set_dark(self, dark: bool) -> None:
        """Let the system prefer dark pages, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", {"features": [feature]})

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """A command of Chromium's own protocol."""
        return self.send("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def picture(self) -> bytes:
        """What is seen of the page as PNG."""
        taken = self.command("Page.captureScreenshot", {})
        return base64.b64decode(taken["data"])

    def send(self, method: str, path: str, body: object = None) -> Any:
        """One request of the protocol; its value."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._root + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as ex:
            raise AssertionError(json.load(ex)["value"]["message"][:600]) from None


def find_chromium() -> tuple[str, str] | None:
    """The browser and its driver; None if either is missing."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_browser(profile: Path, *, scripts: bool = True) -> Iterator[Browser]:
    """A browser with an empty profile.

    Args:
        scripts: whether pages may run any.
    """
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium with its driver (Debian: apt-get install chromium-driver)")
    driver = subprocess.Popen(
        [found[1], "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    try:
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        address = f"http://127.0.0.1:{line.rstrip().rstrip('.').rsplit(' ', 1)[1]}"
        session = _begin(address, found[0], profile, scripts)
        yield Browser(address, session)
        Browser(address, session).send("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(20)


def _begin(address: str, browser: str, profile: Path, scripts: bool) -> str:
    """The session of a new window."""
    arguments = [
        "--headless=new",
        "--no-sandbox",  # tests may run as root, whom Chromium refuses otherwise
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    options: dict[str, Any] = {"binary": browser, "args": arguments}
    if not scripts:
        options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
    body = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
    request = urllib.request.Request(
        f"{address}/session",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(json.load(answer)["value"]["sessionId"])
