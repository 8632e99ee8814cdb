"""The parts of a run, put together: who knows, who measures, who records, who tells.

`Parts` only carries them from stage to stage. A stage that merely looks at what happened takes the
history alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kmem.memory.store import Memory
from kmem.records import Run
from kmem.run.directory import RunDirectory
from kmem.run.evaluation.baselines import BackgroundTiming, RunBaselines
from kmem.run.evaluation.evaluator import Evaluator
from kmem.run.evaluation.measuring import Measurer
from kmem.run.setup.session import Session
from kmem.run.state.clock import Clock
from kmem.run.state.history import History
from kmem.run.state.progress import Announce, Announcer, Event
from kmem.run.state.recorder import Recorder
from kmem.run.state.resume import find_earlier_work, time_over_all_sittings

OpenEvaluator: TypeAlias = Callable[[Announce], Evaluator]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of while it is worked on."""

    run: Run
    session: Session
    memory: Memory
    directory: RunDirectory
    history: History
    baselines: RunBaselines
    measurer: Measurer
    recorder: Recorder
    clock: Clock
    announce: Announce


@contextmanager
def open_parts(
    run: Run,
    session: Session,
    memory: Memory,
    on_event: Callable[[Event], None],
    open_evaluator: OpenEvaluator,
    clock: Clock | None = None,
) -> Iterator[Parts]:
    """Make the parts of a run; the evaluator, and the timing in the background, end with the block.

    Args:
        open_evaluator: is given how to announce, for it may have to wait for the GPU's memory.
        clock: the run's minutes; by default the evaluator's.
    """
    directory = RunDirectory(Path(run.out_dir))
    history = History(session.traced, find_earlier_work(run.id, memory))
    announcer = Announcer(run, session, history, on_event)
    announce = announcer.announce
    recorder = Recorder(run, session, memory, directory, lambda: announcer.clock.run_seconds_left)
    with (
        ThreadPoolExecutor(1) as background,
        closing(open_evaluator(announce)) as evaluator,
    ):
        announcer.clock = clock or Clock(
            time_over_all_sittings(
                lambda: evaluator.seconds_left,
                history.earlier.seconds_spent,
                lambda: history.is_caught_up,
            ),
            lambda: evaluator.reserve_s,
        )
        baselines = RunBaselines(
            session, memory, history, evaluator, BackgroundTiming(background, run.budget)
        )
        measurer = Measurer(evaluator, history, recorder, announce, session)
        try:
            yield Parts(
                run,
                session,
                memory,
                directory,
                history,
                baselines,
                measurer,
                recorder,
                announcer.clock,
                announce,
            )
        finally:
            baselines.let_tune()  # the thread that times them is waited for
