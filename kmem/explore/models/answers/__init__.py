"""How an answer is read: text to typed fields and a file, then held to the situation.

- schema.py: what each role answers, as frozen dataclasses with the limits that always hold.
- parsing.py: the JSON object and the Python file in the text of an answer.
- reading.py: one reader per role: what the answer claims of code, log and metrics must be so.
"""
