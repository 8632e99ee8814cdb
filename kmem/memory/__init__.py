"""The long-term memory: one SQLite file that every run reads and adds to.

In the order in which data passes, from the file to what is asked of it:

- location.py: where the file lies, and the skills that a user added.
- schema.py: the tables.
- migrations.py: what makes the tables, and what changes them in a file that an older kmem wrote.
- storage.py: the connection: opening, transactions, errors that a user can mend.
- runs/: runs with their attempts, profiles and diagnoses, and what they asked language models.
- ledger/: measured outcomes, and what follows from them: winners, sums, posteriors, track records.
- devices.py: baselines of problems and ceilings of devices.
- skills/: the skill library: which skills there are, how they are found, where each stands.
- store.py: `Memory`, which holds an attribute for each of these.
- stats.py: how much a memory holds, and what each skill is expected to do.
- verify.py: damage in the file.
- team/: the ledger shared, through files and through a git repository.
- recover.py: what can be saved of a damaged file.
"""
