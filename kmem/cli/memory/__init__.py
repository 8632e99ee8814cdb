"""Commands on the memory.

- db.py: `kmem db`, where the database lies, whether it is whole, and what can be saved.
- team.py: `kmem memory sync`, `name` and `trust`.
- memory.py: `kmem memory`, share, merge, retract, count and ablate.
"""
