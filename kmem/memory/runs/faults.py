"""What language models get wrong most often, counted over the attempts of the runs kept here."""

import json
import re
from collections import Counter

from kmem.memory.storage import Tables
from kmem.records import Attempt, Fault, Status
from kmem.serialize import from_data

#: Failed attempts looked at, the newest.
_MOST_ATTEMPTS = 2000
#: A fault that was met once may be anybody's slip.
_LEAST_COUNT = 2
_LONGEST = 200
#: What differs between two kernels with one fault: paths, addresses and numbers.
_PATH = re.compile(r"(?:/[\w.+-]+)+/")
_NUMBER = re.compile(r"\b0x[0-9a-f]+\b|\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b")


class Faults(Tables):
    """`memory.faults`: the pitfalls that runs found."""

    def most_frequent(self, limit: int = 8) -> tuple[Fault, ...]:
        """The errors that kernels without a recipe met most often, most frequent first.

        Of the newest failed attempts; errors that differ in paths and numbers alone are one.
        """
        rows = self._storage.read(
            """
            select a.record
            from attempts a
            where a.status not in ('passed', 'interrupted')
            order by a.id desc
            limit ?
            """,
            [_MOST_ATTEMPTS],
        )
        counts: Counter[tuple[Status, str]] = Counter()
        for row in rows:
            data = json.loads(str(row["record"]))
            data["candidate"]["kernel"]["source"] = ""  # which is kept elsewhere
            attempt = from_data(Attempt, data)
            text = _without_particulars(attempt.measurement.telling_line)
            if text and not attempt.candidate.kernel.choices:
                counts[attempt.measurement.status, text] += 1
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0][1]))
        return tuple(
            Fault(status, text, count)
            for (status, text), count in ranked[:limit]
            if count >= _LEAST_COUNT
        )


def _without_particulars(line: str) -> str:
    return _NUMBER.sub("N", _PATH.sub("", line))[:_LONGEST].strip()
