"""A run on a whole model as it stands in its directory, with a run on one of its pieces."""

from dataclasses import replace
from pathlib import Path

from test_memory_store import RUN

from kmem.memory.store import Memory
from kmem.records import Problem
from kmem.run.directory import RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.whole.state import ModelSettings, ModelState, PieceState, PieceStatus, write_state

PIECE_RUN = "20260101-piece"


def make_model(root: Path, memory: Memory, text: str = "attention") -> ModelState:
    """Keep a model of four pieces, each in another state; `text` stands wherever one may."""
    directory = root / "model"
    problem = Problem(text, "/piece.py", "# a piece\n")
    run = replace(RUN, id=PIECE_RUN, problem=problem, out_dir=str(directory / "runs" / "piece"))
    memory.runs.start(run)

    def piece(name: str, status: PieceStatus, eager_ms: float, **others: object) -> PieceState:
        return PieceState(
            name, f"blocks.0.{text}", (text,), 12, eager_ms, 0.05, (), status, **others
        )

    state = ModelState(
        ModelSettings(f"{text}.py:make", (), None, 30.0, RunSettings()),
        text,
        "h200",
        estimated=False,
        total_ms=10.0,
        pieces=(
            piece(text, PieceStatus.KEPT, 0.4, run=PIECE_RUN, kernel_ms=0.1),
            piece("mlp", PieceStatus.DROPPED, 0.2, run="20260101-gone", reason=f"slower: {text}"),
            piece("norm", PieceStatus.RUNNING, 0.1),
            piece("head", PieceStatus.WAITING, 0.05),
        ),
        left=((f"router.{text}", "its sizes depend on values"),),
        seconds=90.0,
        finished=f"no piece may save 1% ({text})",
    )
    directory.mkdir()
    write_state(RunDirectory(directory), state)
    return state
