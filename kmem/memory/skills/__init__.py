"""The skill library as a memory knows it.

- added.py: skills that a user adds, kept beside the database.
- minilm.py: the sentence model that ships with kmem, computed with NumPy.
- embeddings.py: the models that turn texts into vectors.
- vector_cache.py: vectors kept for memories that are not kept themselves.
- vectors.py: `memory.vectors`: vectors of texts, each made once.
- library.py: which skills there are, and which version of each a name means now.
- search.py: `memory.skills`: the library and its search.
- standing.py: `memory.standings`: where a skill stands: draft, verified, retracted.
"""
