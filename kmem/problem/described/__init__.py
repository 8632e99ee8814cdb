"""A problem file from a description in words, without a language model.

- shapes.py: the tensors of a description, as `bf16[32, 4096, 8192]`.
- phrases.py: operators in words, and how torch writes them.
- reading.py: a description as operators in the order in which they are applied.
- writing.py: the problem file.
"""
