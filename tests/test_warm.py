"""Forks of a warm process are told from new processes by their time alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.slow

TELLS = """
import json, os, sys
told = [sys.argv[1:], os.getcwd(), os.environ.get("TOLD"), sys.stdin.read(), sys.path[0]]
print(json.dumps(told), flush=True)
print("beside", file=sys.stderr)
sys.exit(3)
"""


def start(place: Path, source: str, *words: str, **options: object) -> warm.WarmPopen:
    script = place / "template.py"
    script.write_text(source)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TOLD": "in the environment"}
    command = [sys.executable, "-E", "-s", "-B", str(script), *words]
    return warm.WarmPopen(command, env=environment, text=True, **options)


def test_a_fork_gets_and_gives_what_a_new_process_does(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = start(tmp_path, TELLS, "one", "-s", cwd=elsewhere, **pipes)
    output, errors = process.communicate("asked", timeout=60)
    told = [["one", "-s"], str(elsewhere), "in the environment", "asked", str(tmp_path)]
    assert json.loads(output) == told
    assert errors == "beside\n"
    assert process.returncode == 3


def test_a_fork_leads_a_session_and_ends_by_a_signal(tmp_path: Path) -> None:
    process = start(tmp_path, "import time; time.sleep(600)", start_new_session=True)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def test_an_error_that_nobody_catches_is_written_and_exit_code_1(tmp_path: Path) -> None:
    process = start(tmp_path, "raise ValueError('so')", stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    assert errors.endswith("ValueError: so\n")
    assert process.returncode == 1


def test_a_fork_sees_that_whoever_started_it_is_gone(tmp_path: Path) -> None:
    owner = (
        "import json, os, subprocess, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import warm\n"
        "warm._sources.update(json.loads(sys.argv[1]))\n"
        "process = warm.WarmPopen(sys.argv[2:], stdout=1)\n"
        "os._exit(0)\n"
    )
    waits = "import os, time\nwhile os.getppid() != 1: time.sleep(0.01)\nprint('gone')\n"
    start(tmp_path, "pass").wait(60)  # so that there is a source
    script = tmp_path / "template.py"
    script.write_text(waits)
    asked = [sys.executable, "-c", owner, json.dumps(warm._sources), sys.executable, str(script)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("gone\n", "")


@pytest.mark.parametrize(
    ("words", "interpreted", "kind"),
    [
        (["-m", "kmem", "runs"], "1", "kmem"),
        (["-P", "-m", "kmem.profile.compile.worker"], "0", "kmem"),
        (["-E", "host/template.py", "7"], "1", "worker"),
        (["-E", "host/template.py", "7"], "0", None),
        (["-E", "host/serve.py", "7"], "1", None),
        (["-c", "import kmem"], "1", None),
    ],
)
def test_what_is_forked_is_what_a_source_has_imported(
    words: list[str], interpreted: str, kind: str | None
) -> None:
    environment = {"TRITON_INTERPRET": interpreted}
    assert warm.kind_of([sys.executable, *words], environment) == kind
    assert warm.kind_of(["python of others", *words], environment) is None
    assert warm.kind_of([sys.executable, *words], {**environment, "PYTHONPATH": "other"}) is None
