"""A run as one file for sharing: the page of the server without scripts, with its kernels."""

from kmem.memory.store import Memory
from kmem.ui.pages.kernel import kernel_content
from kmem.ui.pages.module_map import view_module
from kmem.ui.pages.run import candidates, run_content, view_baselines
from kmem.ui.pages.run_story import read_story
from kmem.ui.rendering import render_alone
from kmem.ui.requests import Export, Page, PageRequest

#: Kernels whose source is in the file, fastest first: each is ten kilobytes and more.
MOST_KERNELS = 20


def render_run(memory: Memory, run_id: str) -> str:
    """The page of a run (id, or its unique beginning) as HTML that needs nothing else.

    Raises MemoryStoreError if there is no such run.
    """
    story = read_story(memory, run_id)
    numbered = {
        attempt.candidate.kernel.hash: (number, attempt)
        for number, attempt in enumerate(story.attempts, 1)
        if attempt.measurement.latency_ms is not None
    }
    fastest = sorted(numbered.values(), key=lambda entry: entry[1].measurement.latency_ms or 0.0)
    shown = fastest[:MOST_KERNELS]
    inside = {attempt.candidate.kernel.hash for _, attempt in shown}

    def link(kernel: str) -> str:
        return f"#kernel-{kernel}" if kernel in inside else "#cand"

    table = candidates(story, PageRequest(""), link)
    if isinstance(table, Export):  # a request without a query asks for none
        raise AssertionError("a table was asked for")
    details = [kernel_content(memory, story, number, attempt) for number, attempt in shown]
    baselines = view_baselines(story, PageRequest(""))
    content = {
        **run_content(story, table, baselines, link),
        "module": view_module(story.run, PageRequest("")),
        "details": details,
    }
    return render_alone(Page("run.html", story.run.problem.name, content))
