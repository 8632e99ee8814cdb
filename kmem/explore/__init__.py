"""Explore: who writes the candidate kernels of a run.

Both authors implement `kmem.interfaces.Author`; kmem/default_plugins/authors.py registers them.

- recipes/: the author that writes by executable skills, without a language model.
- models/: the author that asks language models.
"""
