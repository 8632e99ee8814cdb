"""How an answer is read: text to typed fields and a file, then held to the situation.

- schema.py: what each role answers, as frozen dataclasses with the limits that always hold.
- malformed.py: what is wrong with an answer, worded for the model.
- blocks.py: the text taken apart: thoughts dropped, fenced blocks found.
- objects.py: the JSON objects of an answer.
- files.py: the Python file of an answer.
- reading.py: one reader per role: what the answer claims of code, log and metrics must be so.
"""
