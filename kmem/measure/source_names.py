"""What a kernel file may name: modules by an allow list, and everything else by what it really is.

A dotted name is looked up in the real modules, step by step, so that what counts is the object that
it reaches and not how it is spelt: another way to the same object is refused as the first one is.
Only modules of the allow list are ever imported here.
"""

import importlib.util
from functools import cache
from types import ModuleType

#: What a kernel file may import; a problem file's own imports are added, since an emitted module
#: carries the problem's `Model`.
ALLOWED_MODULES = frozenset(
    """
    torch triton math typing typing_extensions functools dataclasses collections itertools
    operator enum numbers abc contextlib warnings copy numpy packaging __future__
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
#: Modules of the large packages that kernels need; with a dot at the end, all beneath too.
_PARTS = """
    torch torch.nn torch.nn.functional torch.nn.init torch.nn.modules. torch.nn.utils.
    torch.nn.parameter torch.nn.attention. torch.nn.common_types torch.autograd
    torch.autograd.function torch.cuda torch.cuda.nvtx torch.backends. torch.linalg torch.fft
    torch.special torch.sparse torch.types torch.version torch.func torch.ops torch.library
    torch.utils torch.utils.checkpoint torch.utils.dlpack torch.masked torch.distributions. triton
    triton.language. triton.runtime triton.runtime.driver triton.tools
    triton.tools.tensor_descriptor triton.experimental. numpy numpy.linalg numpy.fft numpy.typing
    numpy.random collections collections.abc packaging packaging.version
    """.split()  # noqa: SIM905 - so many quoted words read worse
_COMPILER = "torch.compile inside a candidate is the baseline, not a kernel"
_HIDES = "hides which operator is called; call the operator itself"
_STREAM = "work on another stream escapes the timed region; launch on the current one"
_GRAPH = "a captured graph replays old inputs; launch the kernels"
_FLAG = "changes a global flag that others rely on; pass dtype=, device= or a context manager"
_RANDOM = "changes or reads the random state; draw with torch.rand, which the judge seeds"
_PRECISION = "lowers precision behind the contract; cast tensors where it is allowed"
_FILES = "file access; keep constants in the source"
_SUBCLASS = "tensor subclasses and modes can defer or hide work; use torch.nn.Module and functions"
_HOOKS = "hooks of all modules reach beyond the candidate; call it in forward"
_COMPUTED = "reaches attributes out of sight; write the attribute's name"
#: Names that are refused whatever they lie in, and why; another name for the same object too.
REFUSED_PATHS = {
    "torch.compile": _COMPILER,
    "torch.compiler": _COMPILER,
    "torch.jit": "TorchScript compiles code behind the judge's back; write Python",
    "torch.utils.cpp_extension": "C++ extensions are not Triton; write @triton.jit",
    "torch.utils._python_dispatch": _SUBCLASS,
    "torch.overrides": _SUBCLASS,
    "torch.utils.data": "processes and threads; forward is given its inputs",
    "torch.nn.parallel": "threads hide which operator is called; there is one device",
    "torch.nn.DataParallel": "threads hide which operator is called; there is one device",
    "torch.library.custom_op": _HIDES,
    "torch.library.Library": _HIDES,
    "torch.library.define": _HIDES,
    "torch.library.impl": _HIDES,
    "torch.library.register_kernel": _HIDES,
    "torch.library.register_torch_dispatch": _HIDES,
    "torch.multiprocessing": "processes; a candidate is one file and one process",
    "torch.distributed": "processes and network; there is one device",
    "torch.hub": "network access",
    "torch.load": _FILES,
    "torch.save": _FILES,
    "torch.from_file": _FILES,
    "torch.import_ir_module": _FILES,
    "torch.UntypedStorage": "raw storage access; use torch.empty and views",
    "torch.TypedStorage": "raw storage access; use torch.empty and views",
    "torch.cuda.Stream": _STREAM,
    "torch.cuda.ExternalStream": _STREAM,
    "torch.cuda.stream": _STREAM,
    "torch.cuda.set_stream": _STREAM,
    "torch.cuda.graph": _GRAPH,
    "torch.cuda.CUDAGraph": _GRAPH,
    "torch.cuda.graphs": _GRAPH,
    "torch.cuda.make_graphed_callables": _GRAPH,
    "torch.cuda.cudart": "raw driver access",
    "torch.cuda.memory": "raw allocator access; use torch.empty",
    "torch.cuda.caching_allocator_alloc": "raw allocator access; use torch.empty",
    "torch.set_default_dtype": _FLAG,
    "torch.set_default_device": _FLAG,
    "torch.set_default_tensor_type": _FLAG,
    "torch.set_float32_matmul_precision": _FLAG,
    "torch.set_num_threads": _FLAG,
    "torch.set_num_interop_threads": _FLAG,
    "torch.set_flush_denormal": _FLAG,
    "torch.set_deterministic_debug_mode": _FLAG,
    "torch.set_warn_always": _FLAG,
    "torch.use_deterministic_algorithms": _FLAG,
    "torch.manual_seed": _RANDOM,
    "torch.seed": _RANDOM,
    "torch.initial_seed": _RANDOM,
    "torch.get_rng_state": _RANDOM,
    "torch.set_rng_state": _RANDOM,
    "torch.default_generator": _RANDOM,
    "torch.random": _RANDOM,
    "torch.cuda.random": _RANDOM,
    "torch.cuda.manual_seed": _RANDOM,
    "torch.cuda.manual_seed_all": _RANDOM,
    "torch.cuda.get_rng_state": _RANDOM,
    "torch.cuda.set_rng_state": _RANDOM,
    "torch.autocast": _PRECISION,
    "torch.amp": _PRECISION,
    "torch.cuda.amp": _PRECISION,
    "torch.nn.modules.module.register_module_forward_hook": _HOOKS,
    "torch.nn.modules.module.register_module_forward_pre_hook": _HOOKS,
    "torch.nn.modules.module.register_module_buffer_registration_hook": _HOOKS,
    "torch.nn.modules.module.register_module_module_registration_hook": _HOOKS,
    "torch.nn.modules.module.register_module_parameter_registration_hook": _HOOKS,
    "torch.nn.modules.module.register_module_backward_hook": _HOOKS,
    "torch.nn.modules.module.register_module_full_backward_hook": _HOOKS,
    "torch.nn.modules.module.register_module_full_backward_pre_hook": _HOOKS,
    "torch.autograd.graph": _HOOKS,
    "numpy.load": _FILES,
    "numpy.loadtxt": _FILES,
    "numpy.genfromtxt": _FILES,
    "numpy.fromfile": _FILES,
    "numpy.fromregex": _FILES,
    "numpy.memmap": _FILES,
    "numpy.save": _FILES,
    "numpy.savez": _FILES,
    "numpy.savez_compressed": _FILES,
    "numpy.savetxt": _FILES,
    "numpy.ctypeslib": "foreign code; write @triton.jit",
    "numpy.f2py": "foreign code; write @triton.jit",
    "numpy.frompyfunc": "Python code behind an operator; write @triton.jit",
    "triton.testing": "timers; timing is the judge's",
    "triton.compiler": "the compiler's internals; launch the kernel",
    "triton.knobs": "the compiler's settings; give num_warps and num_stages at the launch",
    "operator.attrgetter": _COMPUTED,
    "operator.methodcaller": _COMPUTED,
    "typing.get_type_hints": "evaluates text as code; keep the types you need in a table",
    "typing.ForwardRef": "evaluates text as code; name the type",
    "typing_extensions.get_type_hints": "evaluates text as code; keep the types in a table",
    "typing_extensions.evaluate_forward_ref": "evaluates text as code; name the type",
    "dataclasses.make_dataclass": "makes code of text; write the class",
}
#: May be named although what they lie in may not, for the sake of what kmem itself writes.
_ALLOWED_PATHS = ("triton.knobs.runtime.interpret", "torch.cuda.is_current_stream_capturing")
#: Where functions and classes of allowed modules come from.
_ORIGINS = ALLOWED_MODULES | {
    "builtins",
    "types",
    "_operator",
    "_functools",
    "_collections",
    "_collections_abc",
    "_abc",
    "_warnings",
    "_typing",
}
#: Names of other modules that change nothing: emitted modules ask for KMEM_STRICT.
_ALLOWED_NAMES = frozenset({"os.getenv"})
_THROUGH_ANOTHER = "a standard module reached through another one; import what you need by its name"


@cache
def why_refused(path: str, extra: frozenset[str] = frozenset()) -> str | None:
    """Why a dotted name that starts at a module is not for a kernel file; None if it is.

    Args:
        extra: further modules, which are the user's own: nothing is known of what is in them.
    """
    if path in _ALLOWED_NAMES:
        return None
    parts = path.split(".")
    if parts[0] not in ALLOWED_MODULES:
        return None if parts[0] in extra else import_advice(parts[0])
    if any(f"{allowed}.".startswith(f"{path}.") for allowed in _ALLOWED_PATHS):
        return None
    for count in range(1, len(parts) + 1):
        if why := REFUSED_PATHS.get(".".join(parts[:count])):
            return why
    if parts[:2] == ["torch", "ops"]:
        known = len(parts) < 3 or parts[2] in ("aten", "prims", "torchvision")
        return None if known else _HIDES
    if any(part.startswith("_") and not part.startswith("__") for part in parts[1:]):
        return "private parts of a library hide which operator is called; use the public name"
    found: object = _load(parts[0])
    for count in range(1, len(parts) + 1):
        if count > 1:
            found = _member(found, parts[count - 1], ".".join(parts[:count]))
        if found is None:  # nothing of that name here, or a module that is not loaded
            name = ".".join(parts[:count])
            return _why_module(name) if _is_module_name(name) else None
        if why := _why_object(found):
            return why
    return None


@cache
def find_object(path: str) -> object:
    """What a dotted name that was not refused stands for; None if nothing is known."""
    parts = path.split(".")
    if parts[0] not in ALLOWED_MODULES or parts[:2] == ["torch", "ops"]:
        return None
    found: object = _load(parts[0])
    for count in range(2, len(parts) + 1):
        found = _member(found, parts[count - 1], ".".join(parts[:count]))
    return found


def import_advice(root: str) -> str:
    """What to do instead of importing a module that kernels do not need."""
    advice = {
        "os": "the environment is not a kernel's: keep settings as constants in the source",
        "time": "timing is the judge's: remove it",
        "random": "draw with torch.rand, which the judge seeds",
        "types": "write the class or function itself",
        "inspect": "write the code itself",
        "logging": "remove it, or use warnings.warn",
    }.get(root, "of those there are math, typing, functools, dataclasses, collections, itertools")
    return (
        f"a kernel file may import torch, triton, numpy and a few standard modules only; {advice}"
    )


def _load(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:  # not installed here: nothing is known
        return None


def _member(owner: object, name: str, path: str) -> object:
    if owner is None:
        return None
    try:
        return getattr(owner, name)
    except Exception:  # noqa: BLE001 - a library may raise anything; then nothing is known
        module = isinstance(owner, ModuleType) and _is_allowed_module(path)
        return _load(path) if module else None


def _why_object(found: object) -> str | None:
    if isinstance(found, ModuleType):
        return _why_module(found.__name__)
    if (why := _refused_objects().get(id(found))) is not None:
        return why
    origin = getattr(found, "__module__", None)
    if not isinstance(origin, str):
        return None
    if origin.split(".")[0] not in _ORIGINS:
        return _THROUGH_ANOTHER
    for count in range(1, origin.count(".") + 2):
        module = ".".join(origin.split(".")[:count])
        if module in _REFUSED_MODULES:
            return REFUSED_PATHS[module]
    return None


def _why_module(name: str) -> str | None:
    if name.split(".")[0] not in ALLOWED_MODULES:
        return _THROUGH_ANOTHER
    if _is_allowed_module(name):
        return None
    return REFUSED_PATHS.get(name) or f"{name} is not for kernels; use the public names beside it"


def _is_module_name(path: str) -> bool:
    """Whether there is a module to be imported under this name; it is not imported."""
    try:
        return importlib.util.find_spec(path) is not None
    except (ImportError, ValueError):
        return False


def _is_allowed_module(name: str) -> bool:
    if name.split(".")[0] not in ("torch", "triton", "numpy", "collections", "packaging"):
        return name in ALLOWED_MODULES
    return any(
        name == part.rstrip(".") or (part.endswith(".") and name.startswith(part))
        for part in _PARTS
    ) and not any(name == bad or name.startswith(f"{bad}.") for bad in REFUSED_PATHS)


#: What is made in one of these is refused under any name.
_REFUSED_MODULES = frozenset(
    """
    torch.utils.cpp_extension torch.overrides torch.utils.data torch.nn.parallel
    torch.utils._python_dispatch torch.multiprocessing torch.distributed torch.hub torch.jit
    torch.cuda.graphs torch.random torch.amp torch.cuda.amp triton.testing numpy.ctypeslib
    """.split()  # noqa: SIM905 - so many quoted words read worse
)


@cache
def _refused_objects() -> dict[int, str]:
    """Refused functions and classes, by identity."""
    found = {}
    for path, why in REFUSED_PATHS.items():
        value = find_object(path)
        if value is not None and not isinstance(value, ModuleType):
            found[id(value)] = why
    return found
