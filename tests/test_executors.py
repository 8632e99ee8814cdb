"""The local executor: jobs that fail, hang, flood or leave children are results, never trouble."""

import os
import time
from pathlib import Path

import pytest

from kmem.engines.local import LocalExecutor
from kmem.engines.single_job import OUTPUT_LIMIT
from kmem.errors import ExecutorError
from kmem.host.environment import scrubbed_environment
from kmem.interfaces import Job


def run(code: str, timeout_s: float = 30.0, **environment: str):  # noqa: ANN201
    return LocalExecutor().run(
        Job(("python", "job.py"), {"job.py": code, "data/input.txt": "given"}, environment),
        timeout_s=timeout_s,
    )


def test_a_job_gets_its_files_and_gives_back_what_it_left_under_out() -> None:
    result = run(
        "print(open('data/input.txt').read()); open('out/result.bin', 'wb').write(b'\\x00\\x01')"
    )
    assert (result.exit_code, result.stdout, result.files) == (
        0,
        "given\n",
        {"result.bin": b"\x00\x01"},
    )


def test_two_jobs_share_no_directory() -> None:
    code = "import os; print(os.getcwd(), os.path.exists('left')); open('left', 'w')"
    first, second = run(code).stdout.split(), run(code).stdout.split()
    assert first[0] != second[0] and first[1] == second[1] == "False"
    assert not os.path.exists(first[0])


def test_a_failing_job_is_a_result_with_its_exit_code_and_stderr() -> None:
    result = run("raise SystemExit('went wrong')")
    assert result.exit_code == 1 and result.stderr == "went wrong\n"


@pytest.mark.slow
def test_a_hanging_job_is_killed_at_its_limit_with_its_children() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    result = run(code, timeout_s=5.0)  # both have started by then, on a busy machine too
    assert result.exit_code is None and time.monotonic() - start < 40
    assert ends(result.stdout.strip(), within_s=10)


def test_a_child_left_behind_is_ended_with_the_job() -> None:
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    )
    result = run(code)
    assert result.exit_code == 0
    assert ends(result.stdout.strip(), within_s=10)


def ends(pid: str, *, within_s: float) -> bool:
    """Whether a killed process is gone or waits to be reaped, within the moment that takes."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_a_flood_of_output_is_capped_and_says_so() -> None:
    result = run(
        "import sys\nfor _ in range(3000): sys.stderr.write('x' * 10000)\n"
        "sys.stderr.write('the last line')"
    )
    assert result.exit_code == 0
    assert OUTPUT_LIMIT <= len(result.stderr) <= OUTPUT_LIMIT + 100
    assert "bytes left out]" in result.stderr and result.stderr.endswith("the last line")


def test_secrets_do_not_reach_a_job_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("HARMLESS", "kept")
    code = (
        "import os; print(os.environ.get('SOME_API_KEY'), os.environ.get('HARMLESS'), "
        "os.environ.get('GIVEN_TOKEN'))"
    )
    assert run(code, GIVEN_TOKEN="given").stdout == "None kept given\n"


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_names_that_look_like_credentials_are_left_out(name: str) -> None:
    assert scrubbed_environment(base={name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


def test_a_program_that_does_not_exist_is_the_machines_fault() -> None:
    with pytest.raises(ExecutorError, match="no-such-program"):
        LocalExecutor().run(Job(("no-such-program",), {}, {}), timeout_s=5)
