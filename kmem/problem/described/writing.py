"""The problem file of a description."""

from dataclasses import dataclass, field

from kmem.errors import ProblemError
from kmem.problem.described.phrases import Kind
from kmem.problem.described.reading import Description, Step
from kmem.problem.described.shapes import Tensor, name_sizes

_SECOND = (Kind.PRODUCT, Kind.LOSS)


def write_problem_file(described: Description) -> str:
    """The text of the problem file.

    Raises ProblemError: if something is still to be said, or sizes do not fit.
    """
    if described.wants:
        raise ProblemError(f"Say also {'; '.join(described.wants)}")
    if not -len(described.tensors[0].shape) <= described.dim < len(described.tensors[0].shape):
        raise ProblemError(
            f"The input has no dimension {described.dim}: its sizes are "
            f"{list(described.tensors[0].shape)}"
        )
    writer = _Writer(described)
    for step in described.steps:
        writer.apply(step)
    return writer.text()


@dataclass
class _Writer:
    """Gathers inputs, parameters and the lines of forward, step by step."""

    described: Description
    inputs: list[tuple[str, Tensor]] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        first, *self.others = self.described.tensors
        self.inputs.append(("x", first))
        self.width = first.shape[-1]
        self.waiting = self.described.residual
        self.tensors = [first]

    def apply(self, step: Step) -> None:
        """One operator; a residual is added ahead of a norm, else behind the first product."""
        kind, names = step.phrase.kind, {"x": "x"}
        if kind is Kind.NORM:
            self._add_residual()
            names |= self._norm_parameters(step)
        elif kind is Kind.ROW:
            names["dim"] = str(self.described.dim)
        elif kind is Kind.LINEAR:
            names["w"] = self._weight()
        elif kind in _SECOND:
            names["y"] = self._second(step)
        elif kind is Kind.ATTENTION:
            like = self.inputs[0][1]
            names |= {"y": self._input("key", like), "z": self._input("value", like)}
            names["causal"] = str(self.described.causal)
        code = step.phrase.code
        if kind is Kind.NORM and not self.described.weighted:
            code = code.split(", self.")[0] + ")"
        self.lines.append(f"x = {code.format(**names)}")
        self.done.append(step.name)
        if kind in (Kind.LINEAR, Kind.PRODUCT):
            self._add_bias()
            self._add_residual()

    def text(self) -> str:
        """The file."""
        self._add_residual()
        if self.others:
            told = ", ".join(f"{each.dtype}{list(each.shape)}" for each in self.others)
            raise ProblemError(f"No operator of the description takes {told}; leave it out")
        sizes, shapes = name_sizes([tensor for _, tensor in self.inputs])
        constants = "".join(f"{name} = {value}\n" for name, value in sizes.items())
        arguments = ", ".join(f"{name}: torch.Tensor" for name, _ in self.inputs)
        drawn = ",\n".join(
            f"        torch.randn({', '.join(shape)}, dtype=torch.{tensor.dtype})"
            for (_, tensor), shape in zip(self.inputs, shapes, strict=True)
        )
        values = {value: name for name, value in reversed(list(sizes.items()))}
        made = "\n".join(
            f"        {line}" for line in (_fill(each, values) for each in self.parameters)
        )
        lines = "\n".join(f"        {_fill(line, values)}" for line in self.lines)
        own = (
            f"    def __init__(self) -> None:\n        super().__init__()\n{made}\n\n"
            if made
            else ""
        )
        return (
            f'"""{_sentence(self.described.text)}"""\n\n'
            "import torch\nimport torch.nn.functional as F\n\n"
            f"{constants}\n\n"
            f'class Model(torch.nn.Module):\n    """{_steps(self.done)}."""\n\n{own}'
            f"    def forward(self, {arguments}) -> torch.Tensor:\n{lines}\n        return x\n\n\n"
            f"def get_inputs() -> list[torch.Tensor]:\n    return [\n{drawn},\n    ]\n"
        )

    def _norm_parameters(self, step: Step) -> dict[str, str]:
        number = len([line for line in self.parameters if "norm" in line])
        names = {"n": f"<{self.width}>", "w": f"norm{number or ''}_weight"}
        names["b"] = f"norm{number or ''}_bias"
        if self.described.weighted:
            self._parameter(names["w"], f"torch.ones(<{self.width}>")
            if "{b}" in step.phrase.code:
                self._parameter(names["b"], f"torch.zeros(<{self.width}>")
        return names

    def _parameter(self, name: str, made: str) -> None:
        dtype = self.inputs[0][1].dtype
        self.parameters.append(f"self.{name} = torch.nn.Parameter({made}, dtype=torch.{dtype}))")

    def _weight(self) -> str:
        """The weight of a linear layer: a tensor that was said, else of so many features."""
        features = self.described.features
        if features is None:
            shape = self.others.pop(0).shape if self.others else ()
            if len(shape) != 2 or self.width not in shape:
                raise ProblemError(
                    f"A linear layer over {self.width} features wants a weight with that size, not "
                    f"{list(shape)}; say `to N features`"
                )
            features = shape[1] if shape[0] == self.width else shape[0]
        name = f"weight{len(self.parameters) or ''}"
        self._parameter(name, f"<{self.width}> ** -0.5 * torch.randn(<{features}>, <{self.width}>")
        self.width = features
        return name

    def _second(self, step: Step) -> str:
        if step.phrase.kind is Kind.LOSS:
            return self._input("target", self.inputs[0][1])
        if not self.others:
            raise ProblemError("Say the second factor's type and sizes, such as `bf16[4096, 1024]`")
        other = self.others.pop(0)
        if len(other.shape) < 2 or other.shape[-2] != self.width:
            raise ProblemError(
                f"A product over {self.width} elements wants a second factor with that size before "
                f"its last, not {list(other.shape)}"
            )
        self.width = other.shape[-1]
        return self._input("y", other)

    def _input(self, name: str, tensor: Tensor) -> str:
        taken = {each for each, _ in self.inputs}
        name = name if name not in taken else f"{name}{len(taken)}"
        self.inputs.append((name, tensor))
        return name

    def _add_bias(self) -> None:
        if self.described.bias:
            name = f"bias{len([line for line in self.parameters if 'bias' in line]) or ''}"
            self._parameter(name, f"torch.zeros(<{self.width}>")
            self.lines.append(f"x = x + self.{name}")
            self.done.append("bias")

    def _add_residual(self) -> None:
        if self.waiting:
            shape = (*self.inputs[0][1].shape[:-1], self.width)
            name = self._input("residual", Tensor(self.inputs[0][1].dtype, shape))
            self.lines.append(f"x = x + {name}")
            self.done.append("residual added")
            self.waiting = False


def _fill(line: str, values: dict[int, str]) -> str:
    parts = line.replace("<", "\0").replace(">", "\0").split("\0")
    return "".join(
        values.get(int(part), part) if place % 2 else part for place, part in enumerate(parts)
    )


def _sentence(text: str) -> str:
    plain = " ".join(text.replace('"', "'").replace("\\", "/").split()).rstrip(".")
    return f"{plain[:1].upper()}{plain[1:]}."


def _steps(done: list[str]) -> str:
    told = ", then ".join(done)
    return f"{told[:1].upper()}{told[1:]}"
