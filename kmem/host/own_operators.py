"""What an operator of torch is made of that a file defines for itself (torch.library.triton_op).

Whoever watches the dispatcher would see its name alone. Used from a copy too (torch and the
standard library only).
"""

from collections.abc import Callable

from torch._library.custom_ops import OPDEFS


def own_body(operator: object) -> Callable[..., object] | None:
    """The function that an operator was made of; None for one of torch's own.

    Args:
        operator: as `__torch_dispatch__` is given it.
    """
    schema = getattr(operator, "_schema", None)  # higher-order operators have none
    definition = None if schema is None else OPDEFS.get(schema.name)
    return None if definition is None else definition._init_fn
