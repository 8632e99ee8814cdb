"""The server: a socket of this machine alone, and uvicorn on it."""

import socket
from contextlib import suppress
from dataclasses import dataclass

import uvicorn

from kmem.errors import OutputError
from kmem.ui.app import Parts, create_app
from kmem.ui.security import Keys

HOST = "127.0.0.1"
PORT = 8765
#: Open pages listen for events; at the end they are not waited for.
_END_WITHIN_S = 1


def open_socket(port: int | None) -> socket.socket:
    """A socket that listens on this machine alone.

    Args:
        port: None asks for PORT, or any free one where that is taken.

    Raises OutputError: if the port that was asked for is taken.
    """
    for wanted in (PORT, 0) if port is None else (port,):
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            made.bind((HOST, wanted))
            made.listen(128)
            return made
        made.close()
    raise OutputError(f"Port {port} is taken; choose another with --port, or leave it out")


@dataclass(frozen=True)
class PageService:
    """A server that is not yet at work, the socket that it takes, and its keys."""

    server: uvicorn.Server
    listening: socket.socket
    keys: Keys

    def run(self) -> None:
        """Serve until the process is interrupted or `server.should_exit` is set."""
        self.server.run(sockets=[self.listening])


def make_service(parts: Parts, port: int | None) -> PageService:
    """The page over a database, listening.

    Args:
        port: None asks for PORT, or any free one where that is taken.

    Raises OutputError: if the port is taken.
    """
    listening = open_socket(port)
    keys = Keys(listening.getsockname()[1])
    config = uvicorn.Config(
        create_app(parts, keys),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_END_WITHIN_S,
    )
    return PageService(uvicorn.Server(config), listening, keys)
