"""Judge the compiled settings of a problem: kmem's own screening, one of each binary."""

import time
from collections.abc import Sequence
from pathlib import Path

from kmem.learning.landscape import LandscapeDirectory, Point, judged, same_verdict
from kmem.learning.recording.compile import Prepared
from kmem.learning.recording.request import Asked, cache_of
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.records import Measurement, Status, content_hash

#: Settings checked and raced together. A race decides at its end, so what a kill costs is one of
#: these; fewer would be timed longer.
_SLICE = 10


def screen_settings(prepared: Prepared, asked: Asked, root: Path, scratch: Path) -> str:
    """Screen every setting that has no verdict yet, one of each binary, and write the landscape.

    Returns:
        How it went, in one line.
    """
    started = time.monotonic()
    written = prepared.written
    directory, name = LandscapeDirectory(root), written.name
    settled = dict(written.known)

    def settle(point: Point) -> None:
        if point.status is not Status.INTERRUPTED and point.source_hash not in settled:
            settled[point.source_hash] = point
            directory.append(name, point)

    # the points that compile to the same binaries and grids, by binary
    alike: dict[str, list[Point]] = {}
    for point in prepared.points:
        settle(point)
        alike.setdefault(_binary(point), []).append(point)

    def settle_all(point: Point, found: Measurement) -> None:
        first = judged(point, found)
        for twin in alike[_binary(point)]:
            settle(first if twin.source_hash == first.source_hash else same_verdict(twin, first))

    waiting: list[Point] = []  # one of each binary that nothing is known of
    for twins in alike.values():
        verdict = next(
            (settled[twin.source_hash] for twin in twins if twin.source_hash in settled), None
        )
        if verdict is None:
            waiting.append(twins[0])
        else:
            for twin in twins:
                settle(same_verdict(twin, verdict))
    waiting.sort(key=lambda point: turn(point, asked.seed))
    kernels = {kernel.hash: kernel for kernel, _ in written.kernels}
    estimates = {point.source_hash: point.estimated_ms for point in prepared.points}
    deadline = started + 60 * asked.minutes
    settings = JudgeSettings(
        seed=asked.seed, gpu=asked.present, work_dir=scratch / name, cache_dir=cache_of(scratch)
    )
    with Judge(
        written.traced, settings, estimate_ms=lambda kernel: estimates[kernel.hash]
    ) as judge:

        def judge_together(points: Sequence[Point]) -> None:
            drafts = [kernels[point.source_hash] for point in points]
            judge.screen(
                drafts,
                lambda index, found: settle_all(points[index], found),
                deadline_s=deadline - time.monotonic(),
                by_recipes={draft.hash for draft in drafts},
            )

        for begin in range(0, len(waiting), _SLICE):
            judge_together(waiting[begin : begin + _SLICE])
    missing = len(prepared.points) - len(settled)
    if not missing:
        directory.pack(name)
    passed = sum(point.status is Status.PASSED for point in settled.values())
    rest = f", {missing} left for another time" if missing else ""
    return (
        f"{name}: {passed} of {len(prepared.points)} passed{rest} in "
        f"{time.monotonic() - started:.0f} s"
    )


def turn(point: Point, seed: int) -> tuple[bool, str]:
    """The place in the order of judging: the module as it is first, then by hash of knobs."""
    return bool(point.choices), content_hash(
        str(seed), *(repr((choice.recipe, choice.knobs)) for choice in point.choices)
    )


def _binary(point: Point) -> str:
    """What the device would run; the module as it is stands for itself."""
    return point.ptx_hash if point.choices and point.ptx_hash is not None else point.source_hash
