"""Makes Triton's interpreter answer as a GPU would, where it has no answer or a wrong one.

Runs inside the worker, from a copy of this file, before any candidate, and only where kernels are
interpreted.

Covered: products of bfloat16 operands (the interpreter multiplies their bits), products in TF32
(it has them exact), conversions to bfloat16 (it cuts off what a GPU rounds), the common functions
of libdevice, the first configuration of an autotuned
kernel, programs that wait for each other, and questions to Triton's driver. Not covered: the
approximations of libdevice (fast_*), inline assembly.
"""

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace

import numpy
import torch
import triton
import triton.language as tl
from patching import patch_once_a_launch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_semantic
from waiting import let_programs_wait

#: Bits of float32's mantissa that TF32 leaves out. Source: NVIDIA A100 whitepaper, "TF32".
_TF32_DROPPED = 13
_TYPES = {
    "float64": tl.float64,
    "float32": tl.float32,
    "int64": tl.int64,
    "int32": tl.int32,
    "bool": tl.int32,
}


def _by_torch(function: Callable[..., torch.Tensor]) -> Callable[..., numpy.ndarray]:
    def call(*values: numpy.ndarray) -> numpy.ndarray:
        return function(*map(torch.from_numpy, map(numpy.ascontiguousarray, values))).numpy()

    return call


_SAME_NAMES = """
exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh sqrt cbrt floor ceil trunc rint
copysign hypot fmod fabs fmin fmax
"""
#: By name as in libdevice, without the letter of its type; all computed in float64.
_FUNCTIONS: dict[str, Callable[..., numpy.ndarray]] = {
    **{name: getattr(numpy, name) for name in _SAME_NAMES.split()},
    **{
        short: getattr(numpy, name)
        for short, name in {
            "asin": "arcsin",
            "acos": "arccos",
            "atan": "arctan",
            "atan2": "arctan2",
            "asinh": "arcsinh",
            "acosh": "arccosh",
            "atanh": "arctanh",
            "nearbyint": "rint",
            "pow": "power",
            "isnan": "isnan",
            "isinf": "isinf",
            "finite": "isfinite",
            "signbit": "signbit",
        }.items()
    },
    "exp10": lambda x: numpy.power(10.0, x),
    "rsqrt": lambda x: 1.0 / numpy.sqrt(x),
    "fma": lambda x, y, z: x * y + z,
    "div_rn": numpy.divide,
    "rcp_rn": numpy.reciprocal,
    "sqrt_rn": numpy.sqrt,
    "saturate": lambda x: numpy.clip(x, 0.0, 1.0),
    "round": lambda x: numpy.copysign(numpy.floor(numpy.abs(x) + 0.5), x),
    "llrint": numpy.rint,
    "erf": _by_torch(torch.special.erf),
    "erfc": _by_torch(torch.special.erfc),
    "erfinv": _by_torch(torch.special.erfinv),
    "normcdf": _by_torch(torch.special.ndtr),
    "lgamma": _by_torch(torch.special.gammaln),
    "tgamma": _by_torch(lambda x: torch.special.gammaln(x).exp()),
    "j0": _by_torch(torch.special.bessel_j0),
    "j1": _by_torch(torch.special.bessel_j1),
}


def prepare_interpreter() -> None:
    """Change the interpreter of this process; not undone."""
    _compute_dots()
    _round_to_bfloat16()
    _compute_libdevice()
    _take_first_configuration()
    _take_numbers_as_masks()
    patch_once_a_launch()
    let_programs_wait()


# ---- products


def _compute_dots() -> None:
    original = InterpreterBuilder.create_dot

    # Triton's own signature
    def create_dot(builder, a, b, d, precision, imprecise):  # noqa: ANN001, ANN202
        if tl.bfloat16 in (a.dtype.scalar, b.dtype.scalar):
            a, b = _widen(a), _widen(b)
        elif precision == ir.INPUT_PRECISION.TF32 and a.dtype.scalar == tl.float32:
            a, b = _round_to_tf32(a), _round_to_tf32(b)
        return original(builder, a, b, d, precision, imprecise)

    InterpreterBuilder.create_dot = create_dot


def _widen(operand: TensorHandle) -> TensorHandle:
    """bfloat16, which is kept as 16 bits, in float32."""
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    bits = operand.data.astype(numpy.uint16).astype(numpy.uint32) << 16
    return TensorHandle(bits.view(numpy.float32), tl.float32)


def _round_to_tf32(operand: TensorHandle) -> TensorHandle:
    """float32 rounded to TF32's ten bits, ties away from zero, as the hardware converts."""
    data = numpy.ascontiguousarray(operand.data, dtype=numpy.float32)
    bits = data.view(numpy.uint32)
    half = numpy.uint32(1 << (_TF32_DROPPED - 1))
    rounded = (bits + half) & ~numpy.uint32((1 << _TF32_DROPPED) - 1)
    kept = numpy.where(numpy.isfinite(data), rounded, bits).astype(numpy.uint32)
    return TensorHandle(kept.view(numpy.float32), tl.float32)


# ---- conversions


def _round_to_bfloat16() -> None:
    """Cut off at every conversion, a value that is rounded five times is 1% too small."""
    original = InterpreterBuilder.cast_impl

    # Triton's own signature
    def cast_impl(builder, src, dst_type):  # noqa: ANN001, ANN202
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return TensorHandle(_bfloat16_bits(src.data), tl.bfloat16)
        return original(builder, src, dst_type)

    InterpreterBuilder.cast_impl = cast_impl


def _bfloat16_bits(data: numpy.ndarray) -> numpy.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, as its 16 bits."""
    bits = numpy.ascontiguousarray(data, dtype=numpy.float32).view(numpy.uint32)
    odd = (bits >> 16) & numpy.uint32(1)
    rounded = (bits + numpy.uint32(0x7FFF) + odd) >> 16
    quiet = (bits >> 16) | numpy.uint32(0x40)
    return numpy.where(numpy.isnan(data), quiet, rounded).astype(numpy.uint16)


# ---- libdevice


def _compute_libdevice() -> None:
    InterpreterBuilder.create_extern_elementwise = _create_extern_elementwise
    for name, function in vars(cuda_libdevice).items():
        if tl.core.is_builtin(function):
            bound = _with_semantic(function)
            for module in (cuda_libdevice, libdevice):
                if module is cuda_libdevice or hasattr(libdevice, name):
                    setattr(module, name, bound)


def _with_semantic(function: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object, _semantic: object = None) -> object:
        return function(*args, _semantic=_semantic or interpreter_semantic)

    call.__name__ = function.__name__
    return call


def _create_extern_elementwise(  # noqa: PLR0913 - Triton's own signature
    builder: InterpreterBuilder,
    library: str,
    path: str,
    symbol: str,
    arguments: list[TensorHandle],
    kind: object,
    is_pure: bool,  # noqa: FBT001 - Triton's own signature
) -> TensorHandle:
    name = symbol.removeprefix("__nv_")
    single = name not in _FUNCTIONS
    name = name if not single else name.removesuffix("f").removesuffix("d")
    if name not in _FUNCTIONS:
        raise NotImplementedError(
            f"{symbol} of libdevice has no counterpart in Triton's interpreter; use a function of "
            f"tl or tl.math, or judge the kernel on a GPU"
        )
    given = [argument.data for argument in arguments]
    with numpy.errstate(all="ignore"):
        result = numpy.asarray(_FUNCTIONS[name](*[value.astype(numpy.float64) for value in given]))
    if result.dtype == numpy.bool_:
        result = result.astype(numpy.int32)
    elif given and given[0].dtype == numpy.float32:
        result = result.astype(numpy.float32)
    return TensorHandle(result, _TYPES[result.dtype.name])


# ---- autotuning


def _take_first_configuration() -> None:
    """Choosing among configurations needs a GPU; a compile process takes the first as well."""

    # Triton's own signature
    def run(tuner, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
        config = tuner.configs[0]
        tuner.best_config = config
        if config.pre_hook is not None:
            names = dict(zip(tuner.arg_names, args, strict=False))
            config.pre_hook({**names, **kwargs, **config.all_kwargs()})
        return tuner.fn.run(*args, **{**config.all_kwargs(), **kwargs})

    Autotuner.run = run


# ---- masks


def _take_numbers_as_masks() -> None:
    """A condition of a program, joined to one of places by `&`, makes a number of it: 0 or 1."""
    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        _take_number_as_mask(name, place)


def _take_number_as_mask(name: str, place: int) -> None:
    original = getattr(InterpreterBuilder, name)

    # a pass-through
    def access(builder, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
        mask = args[place]
        if mask.data.dtype != numpy.bool_:
            mask = TensorHandle(mask.data.astype(numpy.bool_), tl.int1)
        return original(builder, *args[:place], mask, *args[place + 1 :], **kwargs)

    setattr(InterpreterBuilder, name, access)


# ---- the device


def imitate_driver(properties: Mapping[str, object]) -> None:
    """Answer what kernels ask Triton's own driver as the target's would.

    Args:
        properties: as torch.cuda.get_device_properties has them.
    """
    triton.runtime.driver.set_active(_ImitatedDriver(SimpleNamespace(**properties)))


class _ImitatedDriver:
    """What kernels ask Triton's own driver, and nothing that launches."""

    def __init__(self, answer: SimpleNamespace) -> None:
        self._target = GPUTarget("cuda", 10 * answer.major + answer.minor, answer.warp_size)
        properties = {
            "multiprocessor_count": answer.multi_processor_count,
            "max_shared_mem": answer.shared_memory_per_block_optin,
            "max_num_regs": answer.regs_per_multiprocessor,
            "warpSize": answer.warp_size,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda device: properties)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> ModuleType:
        return torch.cuda
