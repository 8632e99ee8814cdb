"""The ledger shared with others.

- names.py: what a contributor is called among people.
- lines.py: a record as a line of JSON, written, read and checked.
- replacing.py: an exported file takes the place of another, and loses nothing of it.
- exchange.py: files of such lines, exported and merged, and whole databases merged.
- carried.py: what a run commits in one database, carried into another while it goes on.
- git.py: git on a private clone.
- sync.py: such lines as segments of a git repository.
"""
