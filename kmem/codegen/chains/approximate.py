"""What follows a product, in arithmetic as exact as its contract asks and no more.

A convolution in TF32 errs by some 2**-12 of its result, so that exp of it errs by 2**-12 of |x|,
where the hardware's own exp errs by 2**-22 of |x|, and its quotients by 2**-22. `approximate` takes
these in the place of exact ones, which cost three to five times as many instructions. The erf of a
gelu, to which 1 is added, need not be right to the last bit of its own: CUDA's takes 35
instructions, half of which choose between the constants of two polynomials, this one 15. How many
statements take in all says `count_instructions`.

Behind exact products it errs as eager does, too, within fp32's contract of 1e-6: norms of the
errors of sigmoid, swish, softplus and mish over normal, large, tiny and shifted values were 1.0 to
1.8 times those of torch's own functions, 4.3e-8 at most (CPU; the hardware's exp adds up to 1.6e-7
of an exp).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from kmem.codegen.chains.chain import Chain
from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.rates import issues_per_s
from kmem.records import Device

EXP = (
    "kmem_exp",
    '''
@triton.jit
def kmem_exp(x):
    """exp(x) within 2**-22 of |x|; tl.exp takes care of results below 2**-126 besides."""
    return tl.exp2(x * 1.4426950408889634)
''',
)
DIVIDE = (
    "kmem_divide",
    '''
@triton.jit
def kmem_divide(a, b):
    """a / b within two units in the last place."""
    return a / b
''',
)
#: 2 to a polynomial is erfc up to 4, from where on erf is 1 in fp32: fitted by least squares whose
#: weights moved to the largest error, then 9e-8 in fp32 arithmetic (tests/test_codegen_gelu.py).
ONE_AND_ERF = (
    "kmem_one_and_erf",
    '''
@triton.jit
def kmem_one_and_erf(x):
    """1 + erf(x) within 1.8e-7; 0 from -4 down, where erf is -1 in fp32."""
    size = tl.minimum(tl.abs(x), 4.0)
    power = -4.5358852e-05 * size + 4.4550683e-04
    power = power * size - 1.4894385e-03
    power = power * size - 7.7463559e-04
    power = power * size + 2.8253688e-02
    power = power * size - 1.4848162e-01
    power = power * size - 9.1841638e-01
    power = power * size - 1.6279086e00
    erf = 1.0 - tl.exp2(power * size)
    return 1.0 + tl.where(x < 0.0, -erf, erf)
''',
)
_STAND_INS = {
    "stable_exp(": "kmem_exp(",
    "tl.div_rn(": "kmem_divide(",
    "(1.0 + tl.erf(": "(kmem_one_and_erf(",
}
#: Of calls, those that are not named count as a special function; of signs, one.
_CALLS = {
    "kmem_one_and_erf": 15.0,
    "kmem_exp": 2.0,
    "kmem_divide": 8.0,
    "tl.div_rn": 16.0,
    "tl.erf": 36.0,
    "stable_exp": 24.0,
    "tl.where": 2.0,
    "tl.minimum": 1.0,
    "tl.maximum": 1.0,
    "tl.abs": 0.0,
    "tl.max": 1.0,
    "tl.min": 1.0,
    "tl.sum": 1.0,
    "tl.arange": 0.0,
    "to": 0.0,
    "float": 0.0,
    "tl.broadcast_to": 0.0,
    "tl.reshape": 0.0,
    "tl.trans": 0.0,
    "kmem_load_line": 0.0,
    "kmem_norm_lines": 0.0,
}
_SPECIAL = 12.0
#: What follows sums waits for the last product and hides nothing. Of instructions that could be
#: issued: level 2's 4, with two mishes, took 1.07 ms more than with a relu.
CHAIN_ISSUED = 0.75
_CALL, _SIGN = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)?)\("), re.compile(r" [-+*/<>!=]=? ")


@lru_cache(maxsize=256)  # asked for every setting of a space
def approximate(epilogue: Epilogue) -> Epilogue:
    """An epilogue with the hardware's exp and quotients, and a short erf in a gelu."""
    statements = tuple((name, _approximated(text)) for name, text in epilogue.statements)
    called = " ".join(text for _, text in statements)
    return replace(epilogue, statements=statements, helpers=_helpers(epilogue.helpers, called))


def chain_s(
    statements: tuple[tuple[str, str], ...], values: float, device: Device, window: int = 1
) -> float:
    """Seconds that statements take for so many values, on all of a device, beside nothing else.

    Args:
        window: as `count_instructions` takes it.
    """
    return issue_s(statements, values, device, window) / CHAIN_ISSUED


def issue_s(
    statements: tuple[tuple[str, str], ...], values: float, device: Device, window: int = 1
) -> float:
    """Seconds in which a device can issue what statements take for so many values.

    Args:
        window: as `count_instructions` takes it.
    """
    issued = values * count_instructions(statements, window) / device.warp_size
    return issued / issues_per_s(device)


def has_quick_form(epilogue: Epilogue) -> bool:
    """Whether an epilogue is written otherwise when it is approximated."""
    return approximate(epilogue).statements != epilogue.statements


def approximate_chain(chain: Chain) -> Chain:
    """The same of what is written as a function; that of another name, for both may be written."""
    if not chain.functions:
        return chain
    called = chain.functions[:-1]
    name, exact = chain.functions[-1]
    text = _approximated(exact)
    if text == exact:
        return chain
    quick = f"{name}_quick"
    function = quick, text.replace(f"def {name}(", f"def {quick}(")
    return replace(chain, functions=(*_helpers(called, text), function))


def chain_statements(chain: Chain) -> tuple[tuple[str, str], ...]:
    """What a chain's own function does, without its signature, as an epilogue has it."""
    return tuple(("", text.partition("):\n")[2]) for _, text in chain.functions[-1:])


def _helpers(exact: Sequence[tuple[str, str]], called: str) -> tuple[tuple[str, str], ...]:
    """The functions that approximated text calls, of those that exact text called."""
    kept = [helper for helper in exact if helper[0] != "stable_exp" or "stable_exp" in called]
    added = [each for each in (EXP, DIVIDE, ONE_AND_ERF) if f"{each[0]}(" in called]
    return (*added, *kept)


def _approximated(text: str) -> str:
    for exact, quick in _STAND_INS.items():
        text = text.replace(exact, quick)
    return text


@lru_cache(maxsize=256)
def count_instructions(statements: tuple[tuple[str, str], ...], window: int = 1) -> float:
    """Instructions that statements take for one element, roughly, as compiled for sm_90.

    Args:
        window: elements of which a pooling among the statements makes one.
    """
    instructions, share = 0.0, 1.0
    for name, text in statements:
        # what stands in a text several times is done once
        calls = {
            text[found.start() : _end(text, found.end())]: found[1]
            for found in _CALL.finditer(text)
        }
        work = sum(_CALLS.get(call, _SPECIAL) for call in calls.values())
        instructions += share * (work + len(_SIGN.findall(text)))
        if name == "pooled":
            share /= window
    return instructions


def _end(text: str, start: int) -> int:
    """Where the bracket closes that is open at a place of a text."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)
