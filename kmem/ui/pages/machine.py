"""What this machine can do: the checks of `kmem doctor`, made once beside the server."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from kmem.errors import KmemError
from kmem.ui.figures import describe_date
from kmem.ui.requests import Page


@dataclass(frozen=True, slots=True)
class Checked:
    """One check: `ok` is None where it does not apply; `remedy` says what mends it."""

    name: str
    ok: bool | None
    detail: str
    remedy: str | None

    @property
    def mark(self) -> str:
        """The result in a word."""
        return {True: "ok", False: "missing", None: "not here"}[self.ok]


class Machine:
    """The checks, made when they are first asked for; they take seconds."""

    def __init__(self, check: Callable[[], Sequence[Checked]]) -> None:
        """Nothing is checked yet."""
        self._check = check
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kmem-ui-machine")
        self._checks: Future[Sequence[Checked]] | None = None
        self._asked_at = ""

    def check_again(self) -> None:
        """Forget what was found, unless it is being looked for now."""
        if self._checks is None or self._checks.done():
            self._asked_at = datetime.now(UTC).isoformat(timespec="minutes")
            self._checks = self._thread.submit(self._check)

    def show(self) -> Page:
        """The page with the checks, or one that says that they are being made."""
        if self._checks is None:
            self.check_again()
        checks, fault = (), ""
        is_done = self._checks is not None and self._checks.done()
        if is_done and self._checks is not None:
            try:
                checks = self._checks.result()
            except KmemError as ex:
                fault = str(ex)
        content = {"checks": checks, "fault": fault, "when": describe_date(self._asked_at)}
        return Page("machine.html", "Machine", content | {"refresh": "" if is_done else "2"})

    def close(self) -> None:
        """End; what is being checked is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
