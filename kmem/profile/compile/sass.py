"""What a compiled kernel contains: registers, spills, and its machine instructions by kind.

Owned here: running `cuobjdump -res-usage` and `nvdisasm`, which Triton carries, and counting.
Counts are of instructions in the text, once for the whole kernel and once for the bodies of its
loops; how often a loop runs is not in the binary (estimate.py infers it from the work).
"""

import math
import re
import struct
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from kmem.errors import ProfilerError

_INSTRUCTION = re.compile(
    r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_]*)(?P<rest>[^;]*);"
)
_TARGET = re.compile(r"\b0x([0-9a-f]+)\s*$")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_HMMA_SHAPES = {
    "16816": (16, 8, 16),
    "1688": (16, 8, 8),
    "1684": (16, 8, 4),
    "884": (8, 8, 4),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
}
_GMMA_SHAPE = re.compile(r"^\.(\d+)x(\d+)x(\d+)")
#: fp32 arithmetic on the FMA pipe, and the FLOPs of one thread's instruction.
_FMA_FLOPS = {
    "FFMA": 2,
    "FFMA2": 4,
    "FADD": 1,
    "FMUL": 1,
    "FADD2": 2,
    "FMUL2": 2,
    "HFMA2": 4,
    "HADD2": 2,
    "HMUL2": 2,
    "FSWZADD": 1,
}


def read_resources(cubin: Path, cuobjdump: str) -> Mapping[str, float]:
    """Registers and local bytes per thread of the one kernel in a cubin, as `static__` metrics.

    Stack bytes are what ptxas reports for spills and for arrays indexed at run time; Triton makes
    none of the latter.

    Raises:
        ProfilerError: if cuobjdump fails.
    """
    match = _RESOURCES.search(_run_tool([cuobjdump, "-res-usage", str(cubin)]))
    if match is None:
        raise ProfilerError(
            f"{cuobjdump} reports no resource usage for {cubin.name}; reinstall triton"
        )
    return {
        "static__registers_per_thread": float(match[1]),
        "static__stack_bytes_per_thread": float(match[2]) + float(match[4]),
    }


def disassemble(cubins: Sequence[bytes], capability: int, nvdisasm: str, file: Path) -> list[str]:
    """The listing of each kernel, one line an instruction; addresses go on from kernel to kernel.

    The disassembler takes a quarter of a second to start, so it is started once: the code of all
    kernels lies end to end in one file.

    Args:
        capability: of the target, as Triton has it: 90.
        file: where the code may be put; it is gone afterwards.

    Raises:
        ProfilerError: if nvdisasm fails.
    """
    codes = [_machine_code(cubin) for cubin in cubins]
    file.write_bytes(b"".join(codes))
    # from 90 on Triton compiles for the variant that has all instructions
    arch = f"SM{capability}{'a' if capability >= 90 else ''}"
    try:
        # -ndf: no analysis of data flow, a quarter of its time; the listing is the same
        listing = _run_tool([nvdisasm, "-b", arch, "-ndf", str(file)])
    finally:
        file.unlink()
    ends = list(accumulate(map(len, codes)))
    kernels: list[list[str]] = [[] for _ in codes]
    for line in listing.splitlines():
        if instruction := _INSTRUCTION.search(line):
            kernels[bisect_right(ends, int(instruction["address"], 16))].append(line)
    return ["\n".join(lines) for lines in kernels]


def _machine_code(cubin: bytes) -> bytes:
    """The sections .text.* of an ELF file of 64 bits.

    Source: the System V ABI, chapter 4: header, section headers, string table.
    """
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    (names_at,) = struct.unpack_from("<H", cubin, 0x3E)
    # of each section: where its name is among the names, where it lies, and how long it is
    sections = [
        struct.unpack_from("<I20xQQ", cubin, table + size * number) for number in range(count)
    ]
    names = sections[names_at][1]
    return b"".join(
        cubin[start : start + length]
        for name, start, length in sections
        if cubin.startswith(b".text.", names + name)
    )


def _run_tool(argv: list[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise ProfilerError(
            f"{argv[0]} failed: {result.stderr.strip().splitlines()[-1:] or result.returncode}; "
            "reinstall triton"
        )
    return result.stdout


def count_instructions(listing: str) -> Mapping[str, float]:
    """Count a kernel's disassembly by kind, per thread (per warp for tensor-core FLOPs).

    Kinds: instructions, predicated, global_load_bytes, global_store_bytes, global_loads,
    global_stores, wide_accesses (16 bytes), shared_accesses, tensor_flops, tf32_tensor_flops,
    fma_flops, fma, special, barriers, local_accesses (spills), bulk_copies (TMA).

    Returns:
        `static__<kind>` for the straight-line part and `static__loop_<kind>` for the bodies of
            loops (backward branches).
    """
    instructions = list(_INSTRUCTION.finditer(listing))
    places = {int(each["address"], 16): place for place, each in enumerate(instructions)}
    in_loop = [False] * len(instructions)
    for place, instruction in enumerate(instructions):
        target = _TARGET.search(instruction["rest"]) if instruction["opcode"] == "BRA" else None
        start = places.get(int(target[1], 16), place) if target else place
        if start < place:  # not a forward branch, nor the trap at the end that branches to itself
            in_loop[start : place + 1] = [True] * (place + 1 - start)
    counts: Counter[str] = Counter()
    for instruction, looped in zip(instructions, in_loop, strict=True):
        prefix = "static__loop_" if looped else "static__"
        for kind, amount in _classify(instruction).items():
            counts[prefix + kind] += amount
    return {name: float(value) for name, value in sorted(counts.items())}


def _classify(instruction: re.Match[str]) -> dict[str, float]:
    opcode, rest = instruction["opcode"], instruction["rest"]
    if opcode == "NOP":
        return {}
    found: dict[str, float] = {"instructions": 1}
    if instruction["guard"]:
        found["predicated"] = 1
    if opcode in ("LDG", "LDGSTS", "LD", "STG", "ST", "RED", "ATOMG"):
        width = _access_bytes(rest)
        loads = opcode in ("LDG", "LDGSTS", "LD")
        found["global_load_bytes" if loads else "global_store_bytes"] = width
        found["global_loads" if loads else "global_stores"] = 1
        if width == 16:
            found["wide_accesses"] = 1
    elif opcode in ("LDS", "STS", "LDSM", "STSM", "ATOMS"):
        found["shared_accesses"] = 1
    elif opcode in ("LDL", "STL"):
        found["local_accesses"] = 1
    elif opcode in ("UTMALDG", "UTMASTG", "UBLKCP"):
        found["bulk_copies"] = 1
    elif opcode in ("HMMA", "IMMA", "DMMA", "QMMA"):
        shape = rest.removeprefix(".").split(".")[0].split(" ")[0]
        found["tensor_flops"] = 2.0 * math.prod(_HMMA_SHAPES.get(shape, (16, 8, 8)))
        found["tf32_tensor_flops"] = found["tensor_flops"] if "TF32" in rest else 0.0
    elif opcode in ("HGMMA", "QGMMA", "IGMMA"):
        match = _GMMA_SHAPE.match(rest)
        shape = tuple(map(int, match.groups())) if match else (64, 64, 16)
        # four warps share one warp-group instruction
        found["tensor_flops"] = 2.0 * math.prod(shape) / 4
        found["tf32_tensor_flops"] = found["tensor_flops"] if "TF32" in rest else 0.0
    elif opcode in _FMA_FLOPS:
        found["fma"] = 1
        found["fma_flops"] = _FMA_FLOPS[opcode]
    elif opcode == "MUFU":
        found["special"] = 1
    elif opcode == "BAR":
        found["barriers"] = 1
    return found


def _access_bytes(rest: str) -> int:
    suffixes = rest.split(" ")[0].split(".")
    if "128" in suffixes:
        return 16
    if "64" in suffixes:
        return 8
    if "U8" in suffixes or "S8" in suffixes:
        return 1
    if "U16" in suffixes or "S16" in suffixes:
        return 2
    return 4
