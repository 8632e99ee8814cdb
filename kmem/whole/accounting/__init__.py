"""Where the time of a model goes, and what is known of its pieces.

- measured.py: what each operator takes, measured where there is a GPU.
- remembered.py: what memory holds of the pieces.
- account.py: where the time goes, by operator, submodule, launch and piece.
"""
