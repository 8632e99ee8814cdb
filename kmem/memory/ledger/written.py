"""An outcome as this memory counts it: by its writer, whatever origin its record names.

The origin is part of a record's hash and stays as it is; sums, trust and settlements go by the
writer (contributors.py). What is read here is for counting, and its hash is not the record's.
"""

from dataclasses import replace

from kmem.records import Outcome
from kmem.serialize import from_json


def written_by(outcome: Outcome, writer: str) -> Outcome:
    """The outcome with its writer as its origin."""
    return outcome if outcome.origin == writer else replace(outcome, origin=writer)


def read_written(record: str, writer: str) -> Outcome:
    """The outcome of a record, by its writer."""
    return written_by(from_json(Outcome, record), writer)
