"""report.md of a run on a model: its pieces, what each saved, and what was tried and dropped."""

from collections.abc import Iterator
from pathlib import Path

from kmem.run.directory import RunDirectory
from kmem.whole.composing.compose import COMPILED_REST, EAGER_REST
from kmem.whole.proving.clock import COMPOSED
from kmem.whole.proving.proof import Proof, read_proof
from kmem.whole.state import ModelState, PieceState, PieceStatus

_BAR = 40


def write_model_report(directory: RunDirectory, state: ModelState) -> Path:
    """Write the report; returns its path."""
    return directory.write_text("report.md", "\n".join(_report(state)) + "\n")


def _report(state: ModelState) -> Iterator[str]:
    proof = read_proof(state.proof)
    step = "forward and backward" if state.settings.backward else "forward"
    kind = "estimated" if state.estimated else "measured"
    after = state.total_ms - sum(piece.saved_ms for piece in state.pieces)
    yield f"# {state.name} on {state.device}\n"
    if proof is None:
        yield f"No piece makes the whole faster. It stopped because {state.finished}."
        if (beginning := read_proof(state.beginning)) is not None:
            ways = "\n".join(_ways(beginning))
            yield f"\n## Ways to run it\n{ways}"
    else:
        yield (
            f"One {step} by its operators: {state.total_ms:.4g} ms before, {after:.4g} ms with "
            f"{len(state.kept)} kernels ({kind}, {state.total_ms / after:.2f}x). "
            f"It stopped because {state.finished}."
        )
        yield f"\n## The whole\n\n{_proof(proof)}"
        if state.settings.backward:
            yield f"\n{_halves(state)}"
    yield "\n## Saved time\n\n```"
    yield from _waterfall(state)
    yield "```\n\n## Pieces\n"
    yield "| piece | in | calls | eager ms | kernel ms | saved ms | became | run |"
    yield "|---|---|--:|--:|--:|--:|---|---|"
    for piece in state.pieces:
        yield _row(piece)
    yield "\n`kmem why RUN` says why a piece's run did what it did; `kmem report RUN` shows all."
    for path, reason in state.left:
        yield f"\nLeft as it is written: {path or 'the model as a whole'} ({reason})."
    if proof is not None:
        yield (
            "\n## Use\n\n```python\nimport kmem\n\nhandle = kmem.apply(model, "
            'kmem.load("DIRECTORY"))  # undo with handle.undo()\n```'
        )


def _halves(state: ModelState) -> str:
    """What kernels there are of pieces in training."""
    kept = {piece.name for piece in state.kept}
    pairs = [(each.name, each.pair) for each in state.kept if len(each.pair) > len(each.name)]
    both = sum(pair in kept for _, pair in pairs)
    forwards, backwards = len(pairs) - both, sum(bool(each.pair) for each in state.kept) - both
    backwards -= len(pairs)
    return (
        f"Both the forward and the backward of {both} pieces are kernels, the forward alone of "
        f"{forwards}, the backward alone of {backwards}: the other half runs as eager operators, "
        "on what the forward saves."
    )


def _proof(proof: Proof) -> str:
    lines = [
        f"Right by the accuracy contract, with {proof.how}: largest error {proof.error:.2g} "
        f"against float64, eager's own {proof.eager_error:.2g}."
    ]
    if proof.eager_ms is not None and proof.composed_ms is not None:
        lines.append(
            f"Measured in pairs: eager {proof.eager_ms:.4g} ms, composed {proof.composed_ms:.4g} "
            f"ms, {proof.ratio or 0:.3f}x (95% above {proof.ratio_low or 0:.3f}x)."
        )
    for graph in (False, True):
        if (gain := proof.gain(graph=graph)) is not None:
            kind = "as one CUDA graph" if graph else "as it is called"
            paired = gain[0] in proof.gains
            how = f"95% above {gain[2]:.3f}x" if paired else "timed apart, not in pairs"
            lines.append(
                f"Beside the best other way to run it {kind}, {gain[0]}: {gain[1]:.3f}x ({how})."
            )
    other = COMPILED_REST if proof.rest == EAGER_REST else EAGER_REST
    other_ms = proof.baselines_ms.get(f"{COMPOSED}_{other}")
    if proof.rest == COMPILED_REST or other_ms is not None:
        compared = f" (the whole takes {other_ms:.4g} ms with it {other})" if other_ms else ""
        how = "as eager operators"
        if proof.rest == COMPILED_REST:
            how = "compiled by Inductor around them"
        lines.append(f"What is outside of the kernels runs {how}{compared}.")
    if not proof.is_faster:
        lines.append("So another way to run it is as fast or faster, and the run counts as lost.")
    lines += _ways(proof)
    return "\n".join(lines)


def _ways(proof: Proof) -> Iterator[str]:
    """A row for each way to run the model: its time and what memory it takes at most."""
    times = dict(proof.baselines_ms)
    for name, ms in (("eager", proof.eager_ms), ("composed", proof.composed_ms)):
        if ms is not None:
            times[name] = ms
    if not times:
        return
    yield "\n| way | ms | peak MiB |\n|---|--:|--:|"
    for name, ms in sorted(times.items(), key=lambda entry: entry[1]):
        peak = f"{proof.peak_bytes[name] / 2**20:,.0f}" if name in proof.peak_bytes else "-"
        yield f"| {name} | {ms:.4g} | {peak} |"
    for name, reason in proof.missing.items():
        yield f"\n{name} is missing: {reason}."


def _waterfall(state: ModelState) -> Iterator[str]:
    """A bar for the time before, one for each kept piece where its time was, one for after."""
    total = state.total_ms or 1.0
    left = state.total_ms
    yield f"{'before':<40} {left:>10.4g} ms {_bar(0, left, total)}"
    for piece in sorted(state.kept, key=lambda piece: -piece.saved_ms):
        left -= piece.saved_ms
        bar = _bar(left, piece.saved_ms, total)
        yield f"{piece.name[:40]:<40} {-piece.saved_ms:>10.4g} ms {bar}"
    yield f"{'after':<40} {left:>10.4g} ms {_bar(0, left, total)}"


def _bar(start: float, length: float, total: float) -> str:
    return " " * round(start / total * _BAR) + "█" * max(1, round(length / total * _BAR))


def _row(piece: PieceState) -> str:
    kernel = "-" if piece.kernel_ms is None else f"{piece.kernel_ms * piece.calls:.4g}"
    became = piece.status.value
    if piece.status is PieceStatus.WAITING:
        became = "not tried"
    reason = f": {piece.reason}" if piece.reason else ""
    return (
        f"| {piece.name} | {piece.module or 'the model itself'} | {piece.calls} | "
        f"{piece.eager_ms * piece.calls:.4g} | {kernel} | {piece.saved_ms:.4g} | "
        f"{became}{reason} | {piece.run or '-'} |"
    )
