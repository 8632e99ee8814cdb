"""Take pictures of every page, wide and narrow, light and dark: into docs/pictures.

python tools/picture_pages.py [--axe axe.min.js] [--into DIRECTORY] [--whole]

The pages show made-up runs. --whole takes each in every look and down to its end, to be looked at;
without, there are two pictures of each, for docs/. With axe-core (from npm) every page is checked
against WCAG AA, and the exit code is 1 if anything is found or a page is wider than the screen.
Needs Chromium with its driver, as tests/test_ui_browser.py.
"""

import argparse
import io
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chromium import Browser, open_browser
from made_up_runs import EARLIER, LIVE, PIECE, RUN, SAID, fill_memory
from page_server import serve_page
from PIL import Image

from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.run.directory import RunDirectory
from kmem.run.state.diary import write_entry
from kmem.ui.pages.machine import Checked

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
#: Pages that are looked at, but not shown in docs/.
BESIDE = ("choose", "starting", "none")
CHECKS = (
    Checked("Python", True, "3.12.4 on Linux", None),
    Checked("Triton", True, "3.6.0 compiles for sm_90", None),
    Checked("GPU", None, "none here: every time is an estimate", "name one with `--target`"),
    Checked("ncu", False, "not on the path", "install Nsight Compute, or go on with `cupti`"),
)
#: How each page is shown: name, pixels across and down, and whether the system is dark.
LOOKS = (("light", 1280, 1500, False), ("narrow", 390, 1200, True))
EVERY_LOOK = (
    ("light", 1280, 1500, False),
    ("dark", 1280, 1500, True),
    ("narrow-light", 390, 1200, False),
    ("narrow-dark", 390, 1200, True),
)


def check(browser: Browser, axe: str) -> list[str]:
    """What axe-core finds on the page, a line each."""
    browser.run(axe)
    script = """
        return axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})
            .then(found => JSON.stringify(found.violations.map(
                each => [each.id, each.nodes.length, each.nodes[0].html.slice(0, 160)])))
    """
    return [" ".join(map(str, each)) for each in json.loads(browser.run(script))]


def save(taken: bytes, place: Path) -> None:
    """Keep a picture in its 256 most frequent colours, as near as Pillow maps them."""
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    counted = sorted(picture.getcolors(1 << 24) or (), reverse=True)[:256]
    colours = Image.new("P", (1, 1))
    colours.putpalette([part for _, colour in counted for part in colour])
    picture.quantize(palette=colours, dither=Image.Dither.NONE).save(place, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--into", type=Path, default=PICTURES)
    parser.add_argument("--whole", action="store_true", help="every look, down to the end")
    parser.add_argument("--only", help="the pages whose names begin so")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kmem-pictures-") as scratch:
        root = Path(scratch)
        live = fill_memory(root / "kmem.db", root)
        with Memory(root / "kmem.db") as memory:
            kernel = memory.runs.attempts(RUN)[-1].candidate.kernel.hash
        pages = {
            "runs": "/",
            "run": f"/runs/{RUN}",
            "candidate": f"/runs/{RUN}/kernels/{kernel}",
            "live": f"/runs/{LIVE}",
            "compare": f"/compare?a={RUN}&b={EARLIER}",
            "choose": "/compare",
            "problems": "/problems",
            "problem": "/problems/softmax",
            "model": "/problems/decoder",
            "whole": f"/runs/{PIECE}/model",
            "landscapes": "/landscapes",
            "landscape": "/landscapes/argmax_columns_4k",
            "machine": "/machine",
            "starting": "/starting/20260121-101700-soon",
            "none": "/runs/none",
            "skills": "/skills?q=softmax",
            "skill": "/skills/online-softmax",
            "memory": "/memory",
            "new": "/new",
        }
        for stage, text in SAID:
            (root / LIVE).mkdir(exist_ok=True)
            write_entry(root / LIVE, stage, text, 97.0)
        with (
            RunDirectory(root / LIVE).work(live),
            serve_page(root / "kmem.db", collect(build_plugin_manager()), checks=CHECKS) as server,
            open_browser(root / "profile") as browser,
        ):
            browser.open(f"{server.origin}/?token={server.keys.token}")
            for name, address in pages.items():
                if arguments.only and not name.startswith(arguments.only):
                    continue
                if name in BESIDE and not arguments.whole:
                    continue
                for look, width, height, dark in EVERY_LOOK if arguments.whole else LOOKS:
                    browser.set_dark(dark)
                    browser.set_size(width, height)
                    browser.open(server.origin + address)
                    browser.command("Page.setBypassCSP", {"enabled": True})
                    if arguments.axe:
                        faults = check(browser, arguments.axe.read_text(encoding="utf-8"))
                        found += [f"{name}, {look}: {fault}" for fault in faults]
                    wide = browser.run("return document.documentElement.scrollWidth")
                    if wide > width:
                        found.append(f"{name}, {look}: {wide} pixels wide")
                    if arguments.whole:
                        end = browser.run("return document.documentElement.scrollHeight")
                        browser.set_size(width, end)
                    save(browser.picture(), arguments.into / f"{name}-{look}.png")
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
