"""`kmem mcp` in a terminal: it says what it is, and Ctrl-C ends it at once."""

import json
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def start(stdin: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kmem", "mcp"],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KMEM_EMBEDDING_MODEL": "none"},
    )


@pytest.mark.slow
def test_an_interrupt_ends_a_server_that_waits_for_input() -> None:
    with start(subprocess.PIPE) as server:
        server.stdin.write(json.dumps(HELLO) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(10) == 130
        finally:
            server.kill()
        assert server.stderr.read() == "\nInterrupted\n"


@pytest.mark.slow
def test_on_a_terminal_it_says_that_it_is_for_agents() -> None:
    ours, its = pty.openpty()
    with start(its) as server:
        spoke, _, _ = select.select([server.stderr], [], [], 60)
        server.kill()
        line = server.stderr.readline() if spoke else ""
    os.close(its)
    os.close(ours)
    assert "is a server for coding agents" in line
