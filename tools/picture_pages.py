"""Take pictures of every page, wide and narrow, light and dark: into docs/pictures.

python tools/picture_pages.py [--axe axe.min.js] [--into DIRECTORY]

The pages show made-up runs. With axe-core (from npm) every page is checked against WCAG AA, and the
exit code is 1 if anything is found. Needs Chromium with its driver, as tests/test_ui_browser.py.
"""

import argparse
import io
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chromium import Browser, open_browser
from page_server import attempt, fill, finish, make_run, serve_page
from PIL import Image
from test_memory_store import make_outcome

from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Bottleneck

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
RUN = "20260121-101500-3fa2"
KERNEL = '''"""softmax: online-softmax at softmax."""

import torch
import triton
import triton.language as tl

BLOCK = {block}


@triton.jit
def softmax_rows(x, y, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * width + columns, mask=columns < width, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * width + columns, values / tl.sum(values, axis=0), mask=columns < width)
'''
#: How each page is shown: name, pixels across and down, and whether the system is dark.
LOOKS = (("light", 1280, 1500, False), ("narrow", 390, 1200, True))
TIMES = (2.9, 2.4, None, 1.7, 1.9, 1.2, None, 1.31, 0.93, 1.02, 0.91)


def fill_memory(path: Path, root: Path) -> None:
    """Some runs of a plausible day, and a skill with outcomes."""
    with Memory(path) as memory:
        for number, name in enumerate(("layer_norm", "matmul_odd", "cumsum", "gelu_chain")):
            run = replace(
                make_run(f"20260120-0{number}1200-{number}b7c", root, name),
                created_at=f"2026-01-20T0{number}:12:00+00:00",
            )
            made = fill(memory, run)
            if number != 2:
                finish(memory, run, made)
        run = replace(make_run(RUN, root), created_at="2026-01-21T10:15:00+00:00")
        made = fill(memory, run, "move the knobs of online-softmax from the best so far")
        for number, latency_ms in enumerate(TIMES):
            parent = made[-1 - number % 3].candidate.kernel.hash
            source = KERNEL.format(block=2**number)
            made.append(attempt(source, latency_ms, parent, "tile of rows", number // 4 + 1))
            memory.runs.record_attempt(run.id, made[-1])
        finish(memory, run, [made[0], made[-1]])
        for seed in range(120):
            passed = 0.5 + seed % 7 / 10 if (seed * 7) % 11 > 2 else None
            memory.ledger.record(
                make_outcome(
                    passed,
                    problem="softmax",
                    seed=seed,
                    parent_ms=1.4,
                    bottleneck=Bottleneck.DRAM_BANDWIDTH,
                    created_at=f"2026-01-{seed // 10 + 1:02d}T12:00:00+00:00",
                )
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


def save(picture: bytes, place: Path) -> None:
    """Keep a picture with few colours: a quarter of the bytes, and nobody sees it."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(96).save(place, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--into", type=Path, default=PICTURES)
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kmem-pictures-") as scratch:
        root = Path(scratch)
        fill_memory(root / "kmem.db", root)
        with Memory(root / "kmem.db") as memory:
            kernel = memory.runs.attempts(RUN)[-1].candidate.kernel.hash
        pages = {
            "runs": "/",
            "run": f"/runs/{RUN}",
            "candidate": f"/runs/{RUN}/kernels/{kernel}",
            "skills": "/skills?q=softmax",
            "skill": "/skills/online-softmax",
            "memory": "/memory",
            "new": "/new",
        }
        with (
            serve_page(root / "kmem.db", collect(build_plugin_manager())) as server,
            open_browser(root / "profile") as browser,
        ):
            browser.open(f"{server.origin}/?token={server.keys.token}")
            for name, address in pages.items():
                for look, width, height, dark in LOOKS:
                    browser.set_dark(dark)
                    browser.set_size(width, height)
                    browser.open(server.origin + address)
                    browser.command("Page.setBypassCSP", {"enabled": True})
                    if arguments.axe:
                        faults = check(browser, arguments.axe.read_text(encoding="utf-8"))
                        found += [f"{name}, {look}: {fault}" for fault in faults]
                    save(browser.picture(), arguments.into / f"{name}-{look}.png")
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
