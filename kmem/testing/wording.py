"""What the name of a plugin and a reason told to the user must look like."""


def check_name(name: object) -> None:
    """A name is what a user types: one word without spaces."""
    assert isinstance(name, str), f"a name is a string, not {name!r}"
    assert name, "a name must not be empty"
    assert not any(letter.isspace() for letter in name), (
        f"a name is one word, for users type it: {name!r}"
    )


def check_line(text: object, what: str) -> None:
    """`what` must be one line that is not empty, for it is printed beside others."""
    assert isinstance(text, str), f"{what} is a string, not {text!r}"
    assert text.strip(), f"{what} must not be empty"
    assert "\n" not in text, f"{what} is one line, not {text!r}"


def check_reason(reason: object) -> None:
    """What `unavailable_reason` may answer: None, or one line that names the remedy."""
    if reason is not None:
        check_line(reason, "unavailable_reason() is None or a reason with its remedy; a reason")
