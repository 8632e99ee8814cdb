"""The private channel between judge and worker: JSON messages over a socket pair.

Used on both sides (the worker runs from a copy of this file; standard library only). A message is
its length and then a JSON object; each request carries a nonce, which its answer must repeat.
The judge may send open files with a message.
Nothing that is read here is ever executed: no pickle, and a frame above `MAX_FRAME_BYTES` is a
protocol error.
"""

import json
import socket
import struct
import time
from collections.abc import Sequence

MAX_FRAME_BYTES = 16 * 2**20
#: Linux passes 253 at most. Source: SCM_MAX_FD, net/scm.h.
_FILES_AT_ONCE = 128
_HEADER = struct.Struct(">I")


class ChannelClosed(Exception):
    """The other end is gone."""


class ChannelTimeout(Exception):
    """No whole message came before the deadline."""


class ProtocolError(Exception):
    """Bytes came that are no message of this channel."""


class Channel:
    """One end of it. Messages are JSON objects."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: dict, files: Sequence[int] = ()) -> None:
        """Send one object, and after it open files, which the other end must expect.

        Raises ChannelClosed: if the other end is gone.
        """
        data = json.dumps(message).encode()
        try:
            self._connection.settimeout(None)
            self._connection.sendall(_HEADER.pack(len(data)) + data)
            for begin in range(0, len(files), _FILES_AT_ONCE):
                part = list(files[begin : begin + _FILES_AT_ONCE])
                socket.send_fds(self._connection, [b"f"], part)
        except OSError as ex:
            raise ChannelClosed(str(ex)) from ex

    def receive(self, timeout_s: float | None = None) -> dict:
        """Wait for one object.

        Raises:
            ChannelTimeout: if `timeout_s` passes first.
            ChannelClosed: if the other end is gone.
            ProtocolError: if the frame is too long or holds no JSON object.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {length} bytes")
        data = self._read(length, deadline)
        try:
            message = json.loads(data)
        except ValueError as ex:
            raise ProtocolError("a frame that is no JSON") from ex
        if not isinstance(message, dict):
            raise ProtocolError("a frame that is no JSON object")
        return message

    def receive_files(self, count: int) -> list[int]:
        """Take open files that came with the object received last. Raises ChannelClosed."""
        files: list[int] = []
        self._connection.settimeout(None)
        while len(files) < count:
            wanted = min(_FILES_AT_ONCE, count - len(files))
            received = socket.recv_fds(self._connection, 1, wanted)
            if not received[0]:
                raise ChannelClosed("end of file")
            files += received[1]
        return files

    def close(self) -> None:
        self._connection.close()

    def _read(self, count: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise ChannelTimeout
            try:
                self._connection.settimeout(remaining)
                part = self._connection.recv(count - len(parts))
            except TimeoutError as ex:
                raise ChannelTimeout from ex
            except OSError as ex:
                raise ChannelClosed(str(ex)) from ex
            if not part:
                raise ChannelClosed("end of file")
            parts += part
        return bytes(parts)
