"""The web application: addresses, and what answers them.

Pages are functions of a memory and a request (requests.py); this module maps addresses to them,
and carries out the three things that a visitor may change: start, stop and resume a run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kmem.errors import KmemError
from kmem.memory.ledger.listing import OutcomeFilter
from kmem.memory.ledger.track_records import installed_versions
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.ui.addresses import run_address
from kmem.ui.form import command_words, fields_of, find_fault, is_first
from kmem.ui.live import state_of_all, state_of_run, watch
from kmem.ui.pages.compare import show_comparison
from kmem.ui.pages.kernel import show_kernel
from kmem.ui.pages.landscapes import Atlas, show_landscape, show_landscapes
from kmem.ui.pages.machine import Checked, Machine
from kmem.ui.pages.memory import show_memory
from kmem.ui.pages.problems import show_problem, show_problems
from kmem.ui.pages.run import show_run
from kmem.ui.pages.run_story import read_story
from kmem.ui.pages.runs import show_runs
from kmem.ui.pages.skills import Shelf, show_skill, show_skills
from kmem.ui.pages.whole_model import show_model
from kmem.ui.processes import Processes, Started, stop
from kmem.ui.reader import Reader
from kmem.ui.rendering import STATIC, render
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.security import Guard, Keys, read_form, refusal

#: Problems of earlier runs that the form offers.
_PROBLEMS_OFFERED = 200

Show: TypeAlias = "Callable[[Memory, PageRequest], Page | Export]"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the page is made of, from above: the command that starts runs, and the checks."""

    database: Path
    registry: Registry
    start: click.Command  # `kmem optimize`
    check: Callable[[], Sequence[Checked]]  # `kmem doctor`
    landscapes: Path  # a directory of recorded landscapes, there or not


def create_app(parts: Parts, keys: Keys) -> Starlette:
    """The application over one database."""
    site = _Site(parts, keys)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(site.warm())
        yield
        warming.cancel()
        site.close()

    shelf, atlas = Shelf(parts.registry), Atlas(parts.landscapes)
    routes = [
        site.page("/", show_runs, "Runs"),
        site.page("/runs/{run}", show_run, "Runs"),
        site.page("/runs/{run}/kernels/{kernel}", show_kernel, "Runs"),
        site.page("/runs/{run}/model", show_model, "Runs"),
        site.page("/compare", show_comparison, "Runs"),
        site.page("/problems", show_problems, "Problems"),
        site.page("/problems/{problem:path}", show_problem, "Problems"),
        site.page("/landscapes", show_landscapes(atlas), "Landscapes"),
        site.page("/landscapes/{landscape}", show_landscape(atlas), "Landscapes"),
        site.page("/skills", show_skills(shelf), "Skills"),
        site.page("/skills/{skill}", show_skill(shelf), "Skills"),
        site.page("/memory", show_memory, "Memory"),
        Route("/machine", site.show_machine, methods=["GET"]),
        Route("/machine", site.check_machine, methods=["POST"]),
        Route("/live", site.watch_all),
        Route("/runs/{run}/live", site.watch_run),
        Route("/new", site.show_form, methods=["GET"]),
        Route("/new", site.start_run, methods=["POST"]),
        Route("/started/{name}", site.show_started),
        Route("/starting/{run}", site.show_starting),
        Route("/runs/{run}/stop", site.stop_run, methods=["POST"]),
        Route("/runs/{run}/resume", site.resume_run, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, keys=keys)],
        exception_handlers={
            HTTPException: site.answer_http_error,
            KmemError: site.answer_error,
            NoSuchPage: site.answer_error,
        },
        lifespan=lifespan,
    )


def warm(memory: Memory) -> None:
    """Load the sums behind posteriors, and build what reads records."""
    memory.track_records.posteriors(
        [""], bottleneck=None, operators=(), arch="", versions=installed_versions()
    )
    memory.listing.count(OutcomeFilter())
    memory.listing.page(OutcomeFilter(), "recorded", 0, 1, descending=True)
    for line in memory.run_entries.lines()[:1]:
        read_story(memory, line.id)


class _Site:
    """The endpoints, with what they share."""

    def __init__(self, parts: Parts, keys: Keys) -> None:
        self._parts, self._keys = parts, keys
        self._reader = Reader(parts.database)
        self._machine = Machine(parts.check)
        self._fields = fields_of(parts.start)
        self._processes = Processes(parts.database.parent / "ui", parts.database)

    def close(self) -> None:
        """End the threads."""
        self._machine.close()
        self._reader.close()

    async def warm(self) -> None:
        """Pay once, before anybody asks, for what the first page of a kind would wait for."""
        with suppress(KmemError, asyncio.CancelledError):
            await self._reader.ask(warm)

    def page(self, path: str, show: Show, section: str) -> Route:
        """The route of a page that only reads."""

        async def answer(request: Request) -> Response:
            asked = PageRequest(
                request.url.path, dict(request.path_params), dict(request.query_params)
            )
            # templates too in the thread of the reader: the loop is for all visitors
            return await self._reader.ask(
                lambda memory: self._respond(request, show(memory, asked), section)
            )

        return Route(path, answer, methods=["GET"])

    def _respond(
        self, request: Request, shown: Page | Export, section: str = "", status: int = 200
    ) -> Response:
        if isinstance(shown, Export):
            headers = {"Content-Disposition": f'attachment; filename="{shown.filename}"'}
            return Response(shown.text, media_type=shown.media_type, headers=headers)
        may_change = self._keys.knows(request)
        url = request.url
        html = render(
            shown,
            section=section,
            database=str(self._parts.database),
            may_change=may_change,
            form_token=self._keys.form_token if may_change else "",
            self_href=f"{url.path}?{url.query}" if url.query else url.path,
        )
        return Response(html, status, media_type="text/html")

    def _say(self, request: Request, title: str, text: str, status: int) -> Response:
        return self._respond(request, Page("message.html", title, {"text": text}), status=status)

    async def answer_http_error(self, request: Request, error: Exception) -> Response:
        """There is no such page, or not for this method."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        title = "No such page" if status == 404 else "Not possible"
        return self._say(request, title, f"Nothing answers at {request.url.path}.", status)

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """What a visitor can mend, in a line; a run or kernel that is not there is no page."""
        text = str(error)
        missing = isinstance(error, NoSuchPage) or text.startswith("No run ")
        title = "No such page" if missing else "Not possible"
        return self._say(request, title, text, 404 if missing else 500)

    # --- the machine

    async def show_machine(self, request: Request) -> Response:
        """What works here, as `kmem doctor` finds."""
        return self._respond(request, self._machine.show(), "Machine")

    async def check_machine(self, request: Request) -> Response:
        """Check again."""
        if fault := refusal(request, self._keys, await read_form(request)):
            return self._say(request, "Refused", fault, 403)
        self._machine.check_again()
        return RedirectResponse("/machine", 303)

    # --- what is new

    async def watch_all(self, request: Request) -> Response:
        """An event for every change of the database."""
        seen = request.query_params.get("seen", "")
        return EventSourceResponse(watch(self._reader, state_of_all, seen), ping=15)

    async def watch_run(self, request: Request) -> Response:
        """An event for every change of a run."""
        state = partial(state_of_run, run_id=request.path_params["run"])
        seen = request.query_params.get("seen", "")
        return EventSourceResponse(watch(self._reader, state, seen), ping=15)

    # --- runs

    async def show_form(self, request: Request) -> Response:
        """The form that starts a run."""
        values = {f"option-{field.name}": field.default for field in self._fields}
        values["path"] = request.query_params.get("path", "")
        return await self._form(request, values, "", 200)

    async def _form(
        self, request: Request, values: Mapping[str, str], fault: str, status: int
    ) -> Response:
        known = await self._reader.ask(
            lambda memory: memory.run_entries.problem_paths(_PROBLEMS_OFFERED)
        )
        offered = [path for path in known if Path(path).exists()]
        first = [field for field in self._fields if is_first(field)]
        rest = [field for field in self._fields if not is_first(field)]
        content: dict[str, object] = {
            "first": first,
            "rest": rest,
            "values": values,
            "fault": fault,
        }
        content["offered"] = offered
        return self._respond(request, Page("new.html", "New run", content), "Runs", status)

    async def start_run(self, request: Request) -> Response:
        """Start what the form asks for, if the command would."""
        form = await read_form(request)
        if fault := refusal(request, self._keys, form):
            return self._say(request, "Refused", fault, 403)
        words, fault = self._words(form)
        if fault:
            return await self._form(request, form, fault, 422)
        return RedirectResponse(f"/started/{self._processes.start(['optimize', *words])}", 303)

    def _words(self, form: Mapping[str, str]) -> tuple[list[str], str]:
        """The command line that a form asks for, and what is wrong with it."""
        path, source = form.get("path", "").strip(), form.get("source", "")
        options = command_words(self._fields, form)
        if not path and not source.strip():
            return [], "Name a problem file, or paste one."
        if path and source.strip():
            return [], "Name a problem file or paste one, not both."
        if path and not Path(path).expanduser().exists():
            return [], f"There is no file {path}."
        if fault := find_fault(self._parts.start, [*options, "--", path or "problem.py"]):
            return [], fault
        if path:
            place = Path(path).expanduser().resolve()
        else:
            place = self._processes.paste(form.get("name", ""), source)
        return [*options, "--", str(place)], ""

    async def show_started(self, request: Request) -> Response:
        """What a started process says until it is a run; then the page of the run."""
        started = self._processes.started(request.path_params["name"])
        if started is None:
            raise NoSuchPage("No run was started under this name")
        if started.run and await self._reader.ask(lambda memory: memory.runs.has(started.run)):
            return _lead(request, run_address(started.run))
        content = {"started": started, "refresh": "1" if started.running else ""}
        return self._respond(request, Page("started.html", "Starting", content), "Runs")

    async def show_starting(self, request: Request) -> Response:
        """What waits for a command that has just begun: the page of its run once it is one."""
        run = request.path_params["run"]
        if await self._reader.ask(lambda memory: memory.runs.has(run)):
            return _lead(request, run_address(run))
        started = Started(run, "", run, running=True)
        content = {"started": started, "refresh": "1"}
        return self._respond(request, Page("started.html", "Starting", content), "Runs")

    async def stop_run(self, request: Request) -> Response:
        """Interrupt a run as Ctrl-C would: it keeps what it measured."""
        if fault := refusal(request, self._keys, await read_form(request)):
            return self._say(request, "Refused", fault, 403)
        run = await self._reader.ask(lambda memory: memory.runs.get(request.path_params["run"]))
        if not stop(Path(run.out_dir)):
            text = "No process of yours on this machine is at work on this run."
            return self._say(request, "Not stopped", text, 409)
        return RedirectResponse(run_address(run.id), 303)

    async def resume_run(self, request: Request) -> Response:
        """Go on with a run."""
        if fault := refusal(request, self._keys, await read_form(request)):
            return self._say(request, "Refused", fault, 403)
        run = await self._reader.ask(lambda memory: memory.runs.get(request.path_params["run"]))
        name = self._processes.start(["runs", "resume", run.id])
        return RedirectResponse(f"/started/{name}", 303)


def _lead(request: Request, address: str) -> Response:
    """To another page; a page that asks for itself by htmx would put it in its own place."""
    if request.headers.get("hx-request"):
        return Response(status_code=200, headers={"HX-Redirect": address})
    return RedirectResponse(address, 303)
