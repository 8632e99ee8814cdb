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
- pages/: what each page shows.
- form.py: the form that starts a run, made from the command itself.
- processes.py: runs as processes: started, stopped, resumed.
- live.py: changes as server-sent events.
- tables.py: tables that are sorted, filtered and exported.
- figures.py: figures as text, each with its origin.
- plots/: plots and trees.
- source.py: source text and diffs, highlighted.
- rendering.py: pages as HTML.
- one_file.py: a run as one file for sharing.
- alone.py: a treemap as a file of its own.
- templates/: the HTML, and static/: the style sheet, and htmx with its extensions: for events, and
  for renewing a page in place (idiomorph).
"""
