"""The page: runs as they go, candidates, skills and the memory, in a browser of this machine.

The page reads the database and run directories; a run knows nothing of it. Every page has an
address and works without JavaScript; with it, pages follow what is written. In the order in which
an address becomes a page:

- server.py: a socket of this machine alone, and the server on it.
- security.py: who may see and who may change.
- app.py: addresses, and what answers them.
- reader.py: the one thread that reads the database.
- requests.py: what a page is asked and what it answers, free of any web server.
- addresses.py: the addresses of pages, for links.
- runs_page.py: the list of runs.
- run_story.py: all that memory has of one run.
- run_page.py: one run: verdict, staircase, candidates, descent, rounds.
- kernel_page.py: one candidate: verdict, errors, times, profile, diff, source.
- skills_page.py: the skill library, and one skill.
- memory_page.py: what the memory holds, and its outcomes.
- machine_page.py: what this machine can do.
- form.py: the form that starts a run, made from the command itself.
- processes.py: runs as processes: started, stopped, resumed.
- live.py: changes as server-sent events.
- tables.py: tables that are sorted, filtered and exported.
- figures.py: figures as text, each with its origin.
- plot.py: scales, ticks and labels of a plot.
- staircase.py: the plot of a run.
- posterior.py: the plot of a skill over time.
- genealogy.py: the tree of a run's kernels.
- source.py: source text and diffs, highlighted.
- rendering.py: pages as HTML.
- one_file.py: a run as one file for sharing.
- templates/: the HTML, and static/: the style sheet, and htmx with its extension for events.
"""
