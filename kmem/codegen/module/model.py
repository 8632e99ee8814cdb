"""`ModelNew`: the class of an emitted module.

Its forward compares the inputs (shape, dtype, strides, scalar values, train/eval mode where it
matters) with INPUTS and otherwise runs the reference operators. It takes whatever `Model`'s own
forward takes: what the kernels were not written for goes on to the reference.

Autograd: emitted kernels have no backward, so a forward that must record gradients runs the
reference operators too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.module.forward import input_names, parameter_shapes, write_found
from kmem.codegen.module.reference import Signature
from kmem.problem.graph import OpGraph

#: Inputs of one shape may meet parameters of others: another constructor argument makes them.
_CONSTRUCTOR = """\
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        state = dict(self.named_parameters(remove_duplicate=False))
        state.update(self.named_buffers(remove_duplicate=False))
        self.fits = all(name in state and state[name].shape == shape for name, shape in PARAMETERS)
{staged}
"""
_KEEP_STAGED = "        self.kmem_staged = _Staged()\n"

_FORWARD = '''
def _fall_back(reason):
    """Say that the reference operators run, or raise if KMEM_STRICT is 1."""
    text = f"ModelNew runs the reference operators: {{reason}}"
    if getenv("KMEM_STRICT") == "1":
        raise RuntimeError(text)
    warnings.warn(text, stacklevel=3)


class ModelNew(Model):
    """`Model` with Triton kernels; needs a GPU (or TRITON_INTERPRET=1), no gradients, and the sizes
    that INPUTS names.
    """

{constructor}    def forward(self, {taken}):
        if {recognised}:
            if not (torch.is_grad_enabled() and ({grad_check})):
                {run}
            _fall_back("the kernels have no backward, and gradients are recorded")
        else:
            _fall_back("the inputs are not those that the kernels were written for")
        return super().forward({passed_on})
'''

_RUN = "return _forward(self, {inputs})"
#: Of a module with parameters, one of which may have been given another form since.
_FETCH_AND_RUN = """\
try:
                    kmem_state = _fetch(self)
                except KeyError as ex:
                    _fall_back(f"{{ex}} was given another form, as by pruning")
                    return super().forward({passed_on})
                return _forward(self, kmem_state, {inputs})"""


@dataclass(frozen=True, slots=True)
class _Call:
    """What a forward is declared to take and hands on to `Model`'s, and whether that may be more
    than the kernels were written for.
    """

    taken: str
    passed_on: str
    takes_more: bool


def write_model(graph: OpGraph, signature: Signature | None, *, fetches: bool, stages: bool) -> str:
    """`ModelNew`: the kernels for the inputs that are expected, the reference for any others.

    Args:
        signature: of the forward of `Model`; None if its text does not show it.
        fetches: whether its forward is given parameters.
        stages: whether it keeps what launches read in the place of parameters.
    """
    tensors = _tensor_inputs(graph)
    grad_checks = [f"{name}.requires_grad" for name in tensors]
    if any(placeholder.kind == "parameter" for placeholder in graph.placeholders):
        grad_checks.append("any(parameter.requires_grad for parameter in self.parameters())")
    call = _call_of(input_names(graph), signature)
    has_parameters = bool(parameter_shapes(graph))
    recognised = [
        *(["self.fits"] if has_parameters else []),
        *(["not kmem_others and not kmem_named"] if call.takes_more else []),
        *(f"isinstance({name}, torch.Tensor)" for name in tensors),
        f"{write_found(graph)} == INPUTS",
    ]
    constructor = _CONSTRUCTOR.format(staged=_KEEP_STAGED if stages else "")
    run = _FETCH_AND_RUN if fetches else _RUN
    return _FORWARD.format(
        constructor=constructor if has_parameters else "",
        taken=call.taken,
        passed_on=call.passed_on,
        run=run.format(inputs=", ".join(input_names(graph)), passed_on=call.passed_on),
        recognised=" and ".join(recognised),
        grad_check=" or ".join(grad_checks) or "False",
    )


def _call_of(names: Sequence[str], signature: Signature | None) -> _Call:
    """How a forward is called whose inputs have these names."""
    own = signature.positional[: len(names)] if signature is not None else ()
    if signature is None or [name for name, _ in own] != list(names):
        own, takes_more = tuple((name, None) for name in names), True
    else:
        takes_more = signature.takes_more or len(signature.positional) > len(names)
    parameters = [name if default is None else f"{name}={default}" for name, default in own]
    more = ["*kmem_others", "**kmem_named"] if takes_more else []
    return _Call(", ".join([*parameters, *more]), ", ".join([*names, *more]), takes_more)


def _tensor_inputs(graph: OpGraph) -> list[str]:
    return [
        placeholder.name
        for placeholder in graph.placeholders
        if placeholder.kind == "input" and placeholder.spec is not None
    ]
