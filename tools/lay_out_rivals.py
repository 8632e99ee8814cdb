"""Lays out what kmem is measured on and beside, from repositories of others that you have fetched.

    python tools/lay_out_rivals.py --out DIR [--kernelbench REPO] [--adaexplore REPO]
        [--autokernel REPO]

A REPO is a git repository, with or without a work tree; its HEAD is read. Written are

- DIR/KernelBench/level1 ... for `kmem bench DIR/KernelBench --level N`;
- DIR/AdaExplore/level2, level3: its released kernels, for tools/compare_kernels.py --theirs;
- DIR/AutoKernel/problems and theirs, by tools/autokernel_problems.py, and DIR/AutoKernel/whole: its
  model files with inputs, in half precision, for tools/run_models.py.

Nothing of it belongs into this repository.
"""

import argparse
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import autokernel_problems

#: Where AdaExplore keeps the kernels that it released for a level of KernelBench.
_SAVED = "results/saved_kernels/kernelbench/level{}"
_LEVELS = (2, 3)
#: AutoKernel's models: the class, the inputs of its profiler, and how many tokens it knows.
_MODELS = {
    "gpt2": ("GPT2", (1, 1024), 50257),
    "llama_7b": ("LlamaModel", (1, 512), 32000),
    "bert_base": ("BertModel", (8, 512), 30522),
}
_WHOLE = """

class Model({model}):
    def __init__(self):
        super().__init__()
        self.half().eval()


def get_inputs():
    return [torch.randint(0, {tokens}, {shape})]


def get_init_inputs():
    return []
"""


def unpack(repo: Path, folder: str, out: Path) -> None:
    """Write the files under a folder of a repository's HEAD into a directory.

    Raises SystemExit: if there is no such repository, or no such folder in it.
    """
    command = ["git", "-C", str(repo), "archive", "HEAD", folder]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise SystemExit(f"{repo} has no {folder}: {said}")
    above = Path(folder).parts
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts
            if member.isfile() and parts[: len(above)] == above:
                file = out.joinpath(*parts[len(above) :])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.extractfile(member).read())


def lay_out_autokernel(repo: Path, out: Path) -> None:
    """Write AutoKernel's problems, its kernels for them, and its models."""
    with tempfile.TemporaryDirectory() as checkout:
        for folder in ("kernels", "models"):
            unpack(repo, folder, Path(checkout) / folder)
        autokernel_problems.write_all(out, Path(checkout), "float16")
        (out / "whole").mkdir(exist_ok=True)
        for name, (model, shape, tokens) in _MODELS.items():
            text = (Path(checkout) / "models" / f"{name}.py").read_text(encoding="utf-8")
            whole = _WHOLE.format(model=model, tokens=tokens, shape=shape)
            (out / "whole" / f"{name}.py").write_text(text.rstrip() + "\n" + whole, "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    for name in ("kernelbench", "adaexplore", "autokernel"):
        parser.add_argument(f"--{name}", type=Path, metavar="REPO")
    asked = parser.parse_args(arguments)
    if asked.kernelbench:
        unpack(asked.kernelbench, "KernelBench", asked.out / "KernelBench")
    if asked.adaexplore:
        for level in _LEVELS:
            unpack(asked.adaexplore, _SAVED.format(level), asked.out / f"AdaExplore/level{level}")
    if asked.autokernel:
        lay_out_autokernel(asked.autokernel, asked.out / "AutoKernel")


if __name__ == "__main__":
    main()
