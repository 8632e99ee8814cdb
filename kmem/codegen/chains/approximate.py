"""What follows a product of rounded operands, in arithmetic as exact as that and no more.

A convolution in TF32 errs by some 2**-12 of its result, so that exp of it errs by 2**-12 of |x|,
where the hardware's own exp errs by 2**-22 of |x|, and its quotients by 2**-22. `approximate` takes
these in the place of exact ones, which cost three to five times as many instructions.
"""

from dataclasses import replace

from kmem.codegen.chains.epilogue import Epilogue

DIVIDE = (
    "kmem_divide",
    '''
@triton.jit
def kmem_divide(a, b):
    """a / b within two units in the last place."""
    return a / b
''',
)
_STAND_INS = {"stable_exp(": "tl.exp(", "tl.div_rn(": "kmem_divide("}


def approximate(epilogue: Epilogue) -> Epilogue:
    """An epilogue with the hardware's exp and quotients."""
    statements = tuple((name, _approximated(text)) for name, text in epilogue.statements)
    called = " ".join(text for _, text in statements)
    helpers = [
        helper for helper in epilogue.helpers if helper[0] != "stable_exp" or "stable_exp" in called
    ]
    if "kmem_divide(" in called:
        helpers.insert(0, DIVIDE)
    return replace(epilogue, statements=statements, helpers=tuple(helpers))


def _approximated(text: str) -> str:
    for exact, quick in _STAND_INS.items():
        text = text.replace(exact, quick)
    return text
