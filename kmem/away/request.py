"""What a worker is told, and the lines in which it tells how it goes."""

import json
from dataclasses import asdict, dataclass

#: The request, in the job's directory.
REQUEST = "request.json"
#: Where the database, the skills beside it, and the problem are put, in the job's directory.
MEMORY, SKILLS = "memory/kmem.db", "memory/skills"
PROBLEM = "problem"
#: What was compiled for the run before its turn came, in the job's directory.
COMPILED = "compiled.tar.gz"
#: Where the run works, in the job's directory.
RUN = "out/run"
#: How lines on stdout begin that are not the run's own.
NEWS = "kmem-news "
UNFIT, HELD = "kmem-unfit ", "kmem-held "
#: The exit code of a worker whose card is not fit. Source: sysexits.h, EX_TEMPFAIL.
EXIT_UNFIT = 75


@dataclass(frozen=True, slots=True)
class Request:
    """A run that a worker is to carry out."""

    words: tuple[str, ...]  # of kmem, without the program itself
    problem: str  # its file, in the job's directory
    home: str  # what the run's directory is called by who asked
    resumed: str | None = None  # a run that goes on
    reference: str | None = None  # a card to compare with, as JSON
    ceilings: str | None = None  # the device with its measured rates, as JSON, to compare with
    shared: bool = False  # whether other runs of who asked use the card
    # where the run works, with the memory of who asked; None: in the job's directory, with a copy
    place: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        data = json.loads(text)
        return cls(**{**data, "words": tuple(data["words"])})
