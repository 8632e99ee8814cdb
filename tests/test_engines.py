"""The crew of this machine, and that nothing outlives whoever wanted it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_executors import ends

from kmem.engines.desk import Desk
from kmem.engines.executor import Job, JobResult, Wanted, Worker
from kmem.engines.local import LocalCrew, LocalExecutor
from kmem.engines.scheduler import Listener, Verdict, Work
from kmem.engines.single_job import SingleJob
from kmem.errors import ExecutorError
from kmem.testing import check_crew


class Waiting(Listener):
    """Lets a test wait for the end of a work."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.over = threading.Event()
        self.result: JobResult | None = None
        self.reason = ""

    def said(self, worker: Worker, stream: str, text: str) -> None:
        self.lines.append((stream, text))

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        self.result = result
        self.over.set()
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self.reason = reason
        self.over.set()


def python(code: str, **environment: str) -> Job:
    return Job(("python", "job.py"), {"job.py": code}, environment)


def test_the_local_crew_keeps_the_contract(tmp_path: Path) -> None:
    check_crew(LocalExecutor(), Wanted(gpus=0, cpus=2, directory=tmp_path))


def test_a_worker_with_a_gpu_lets_its_jobs_see_that_one_and_others_see_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    crew = LocalCrew([Worker("card", gpu="GPU-5"), Worker("core")])
    with Desk(crew, lambda text: None) as desk:
        found = {gpu: Waiting() for gpu in (True, False)}
        for gpu, waiting in found.items():
            desk.add(Work(str(gpu), lambda worker: python(code), waiting, gpu=gpu))
        for waiting in found.values():
            assert waiting.over.wait(60)
    assert found[True].lines == [("stdout", "GPU-5")]
    assert found[False].lines == [("stdout", "")]


def test_the_end_of_a_desk_ends_its_jobs_with_their_children() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    waiting = Waiting()
    with Desk(LocalCrew([Worker("core")]), lambda text: None) as desk:
        desk.add(Work("w", lambda worker: python(code), waiting))
        while not waiting.lines:
            time.sleep(0.01)
    assert ends(waiting.lines[0][1], within_s=10)


def test_a_job_that_is_cancelled_may_write_down_where_it_stands() -> None:
    code = (
        "import time\n"
        "try:\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    open('out/stand', 'w').write('half')\n"
        "    raise SystemExit(130)"
    )
    jobs: list[SingleJob] = []
    jobs.append(
        SingleJob(
            python(code),
            timeout_s=60,
            on_line=lambda stream, text: jobs[0].cancel(),
            grace_s=20,
        )
    )
    result = jobs[0].run()
    assert (result.exit_code, result.files) == (130, {"stand": b"half"})


@pytest.mark.parametrize("who", ["the job", "whoever wanted it", "that and the warden"])
def test_a_job_ends_when_whoever_wanted_it_is_killed(who: str, tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    asks = (
        "import sys\n"
        "from kmem.engines.executor import Job\n"
        "from kmem.engines.single_job import SingleJob\n"
        f"job = Job(('python', '-c', {code!r}), {{}}, {{}})\n"
        "show = lambda stream, text: print(text, flush=True)\n"
        "print(SingleJob(job, timeout_s=60, on_line=show).run().exit_code)"
    )
    wants = subprocess.Popen(
        [sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    pid = wants.stdout.readline().strip()
    warden = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    if who == "that and the warden":  # as Ray does
        os.kill(wants.pid, signal.SIGSTOP)
        os.kill(int(warden), signal.SIGKILL)
    os.kill(int(pid) if who == "the job" else wants.pid, signal.SIGKILL)
    assert ends(pid, within_s=10)
    rest = wants.communicate(timeout=60)[0]
    assert rest == ("-9\n" if who == "the job" else "")


def test_a_program_that_no_machine_has_is_given_up_with_the_reason() -> None:
    notes: list[str] = []
    waiting = Waiting()
    with Desk(LocalCrew([Worker("core")]), notes.append) as desk:
        desk.add(Work("w", lambda worker: Job(("no-such-program",), {}, {}), waiting))
        assert waiting.over.wait(60)
    assert "no-such-program" in waiting.reason and len(notes) == 5


def test_an_executor_of_single_jobs_opens_no_crew(tmp_path: Path) -> None:
    from kmem.run.evaluation.evaluator import _InTurn

    executor = _InTurn(LocalExecutor(), tmp_path, lambda: 1.0)
    with pytest.raises(ExecutorError, match="opens no crew"):
        executor.hire(Wanted(), lambda text: None)
