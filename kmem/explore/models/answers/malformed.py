"""What is wrong with an answer, worded for the model that is asked again."""


class Malformed(Exception):
    """An answer that cannot be used, and exactly why; the text is sent back to the model once.

    `usable` is the part of the answer that has no fault, if that part is worth having when the
    second answer is no better.
    """

    def __init__(self, message: str, usable: object | None = None) -> None:
        super().__init__(message)
        self.usable = usable
