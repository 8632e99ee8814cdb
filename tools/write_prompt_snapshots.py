"""Write tests/snapshots/: the prompts of every role for ten problems.

Run it after a deliberate change and read the difference.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from prompt_cases import SNAPSHOTS, snapshots  # noqa: E402 - found only with the path above


def main() -> None:
    SNAPSHOTS.mkdir(exist_ok=True)
    for name, text in snapshots().items():
        (SNAPSHOTS / name).write_text(text, encoding="utf-8")
    print(f"{len(list(SNAPSHOTS.iterdir()))} files in {SNAPSHOTS}")


if __name__ == "__main__":
    main()
