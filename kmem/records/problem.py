"""What is to be made fast, on what device, and how fast that could be.

Problem, workload and contract; device; bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kmem.records.identity import content_hash


class Precision(Enum):
    """The declared accuracy: match eager's own, or a looser one that the baseline shares."""

    MATCH = "match"  # PyTorch's default flags: exact fp32 matmul, TF32 convolutions
    TF32 = "tf32"  # torch.backends.cuda.matmul.allow_tf32 = True, for baseline and candidate
    BF16 = "bf16"  # module and floating inputs cast to bfloat16, for baseline and candidate


class Purity(Enum):
    """Whether vendor kernels (cuBLAS and its kin) may compete inside a candidate."""

    LIBRARY = "library"  # vendor kernels may be called
    TRITON = "triton"  # all GPU time in kernels compiled from the emitted file


@dataclass(frozen=True, slots=True)
class Contract:
    """What a candidate is held to; part of every outcome's identity."""

    precision: Precision = Precision.MATCH
    purity: Purity = Purity.LIBRARY


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype ("float32") and strides (in elements) of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def has_contiguous_items(self) -> bool:
        """Whether each item along the first axis is contiguous, and none overlaps the next.

        So are the images of a slice of channels.
        """
        if not self.shape:
            return True
        item = TensorSpec(self.shape[1:], self.dtype, self.stride[1:])
        return item.is_contiguous and (self.shape[0] == 1 or self.stride[0] >= item.numel)


DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A file in the KernelBench contract.

    It has `Model`, `get_inputs()` and perhaps `get_init_inputs()` and `get_small_inputs()`.
    """

    name: str
    path: str
    source: str

    @property
    def hash(self) -> str:
        """A hash over the source text alone: where the file lies does not matter."""
        return content_hash(self.source)


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes to run a problem at.

    `full` is as the file says; `small` has sizes replaced, for machines without a GPU. `constants`
    are names and values put in place of the file's own: module-level names, and numbers as they are
    written (problem/source/substitution.py has the grammar); `small_inputs` says that the problem's
    own `get_small_inputs()` makes the inputs instead.
    """

    name: str
    constants: tuple[tuple[str, int | tuple[int, ...]], ...] = ()
    small_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator: its properties and its peak rates.

    Rates are dense, never "with sparsity", and either measured here or from the datasheet.
    `peak_flops_per_s` has the keys fp32, tf32, bf16, fp16 (tensor core where the name has one) and
    special (special-function operations). `read_bytes_per_s` is the rate of a read-only stream,
    `dram_bytes_per_s` that of a copy, counting bytes read plus written.
    """

    name: str  # "h200"
    full_name: str  # "NVIDIA H200"
    arch: str  # "sm_90" or "gfx942"
    warp_size: int
    sm_count: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    l2_bytes: int
    memory_bytes: int
    dram_bytes_per_s: float
    read_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    launch_ms: float  # time one extra kernel costs on the stream
    source: str  # datasheet URL, or "measured YYYY-MM-DD" with versions
    measured: bool = False
    call_ms: float = 0.0  # what a call of the library costs at least, where that is more


@dataclass(frozen=True, slots=True)
class Bound:
    """What the traced graph needs at least, and how long that takes on a device.

    `flops` keys are those of `Device.peak_flops_per_s`; `limiter` is "bytes" or one of them.
    `time_ms` is the largest of the single times: the classic roofline. Source: Williams, Waterman,
    Patterson, "Roofline", CACM 52(4), 2009.
    """

    bytes: int
    flops: Mapping[str, float]
    time_ms: float
    limiter: str
