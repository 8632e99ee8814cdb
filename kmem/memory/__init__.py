"""The long-term memory: one SQLite file that every run reads and adds to.

In order: location.py (where the file and added skills lie), migrations.py (the tables), storage.py
(connection, transactions, errors), then the nouns, each a class of methods that store.py joins into
`Memory`: runs.py (runs, attempts, kernels, profiles, diagnoses), outcomes.py (outcomes and
retractions) with tally.py (their sums, kept as they arrive), track_records.py (what skills earned:
cells.py holds the sums in memory, posteriors.py turns them into posteriors), recall.py (what to
start from), devices.py (baselines, ceilings), library.py (skills) with search.py; embeddings.py
loads the model; added.py keeps the skills a user added; standing.py derives what each skill is
(draft, verified, retracted); exchange.py exports and merges; verify.py finds damage.
"""
