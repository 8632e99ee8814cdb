"""Who did the work: what one forward of a candidate dispatched, launched and ran on the GPU.

On a GPU the profiler's list of kernels decides; in the interpreter only the log of operators is
there, because Triton kernels run on the CPU.

In order: what is seen in the worker, then verdicts, which are pure functions of that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from kmem.host.own_operators import own_body
from kmem.measure.examine.examination import Examination, HowToRun, Refused
from kmem.measure.oracle.answers.answer import InputsChanged
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.process import WorkerFailure
from kmem.measure.worker.commands import Kernels, Operators
from kmem.measure.worker.lineage import COMPUTED, LIBRARY, UNSEEN, Lineage
from kmem.measure.worker.operators import DRAWN_MASK, OperatorLog
from kmem.records import Purity, Status

#: Share of GPU time outside the file's own Triton kernels that `--purity triton` tolerates beside
#: what computes nothing.
FOREIGN_SHARE = 0.01
#: In the names of GPU kernels that compute nothing: they write a constant or what the host knew
#: before, copy, as the operators in `NOT_COMPUTING` do, or draw a mask (DRAWN_MASK; another is
#: refused as an operator). Beside a problem of a few kilobytes, or one bound by memory, they take
#: half of the time. No function of Python can be called so.
_NOT_COMPUTING_KERNELS = (
    *("Memset (", "::FillFunctor<", "Memcpy HtoD (", "Memcpy DtoD ("),
    *("copy_kernel_cuda(", "::fused_dropout_kernel"),
)
#: Operators that compute nothing: allocation, fills, copies and views. Everything else is a vendor
#: kernel doing the work.
NOT_COMPUTING = frozenset(
    {
        "empty",
        "empty_strided",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "full",
        "full_like",
        "fill_",
        "zero_",
        "copy_",
        "clone",
        "_to_copy",
        "contiguous",
        "lift_fresh",
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "_reshape_copy",
        "reshape",
        "view_as_real",
        "view_as_complex",
        "as_strided",
        "expand",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "select",
        "slice",
        "narrow",
        "unfold",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "diagonal",
        "flatten",
        "unflatten",
        "movedim",
        "swapaxes",
        "resize_",
        "set_",
        "arange",
        "scalar_tensor",
        "pin_memory",
        "record_stream",
        "is_pinned",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "_assert_tensor_metadata",  # torch.export leaves it beside casts
    }
)

#: Operators that only move values about, as some modules do; a library's kernel does it.
_MOVING = frozenset(
    """
    cat stack index_select embedding gather index take flip roll repeat constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d pixel_shuffle pixel_unshuffle im2col tril triu channel_shuffle
    """.split()  # noqa: SIM905 - so many quoted words read worse
)

#: What dropout consists of, on a GPU and on the CPU, and what a file may have of it.
_DROPPING = frozenset({"native_dropout", "bernoulli_"})
_DRAW_APART = (
    "; of dropout torch may draw the mask, torch.native_dropout(torch.zeros_like(x), p, True)[1], "
    "and the file's kernels drop by it"
)


def check_provenance(examination: Examination, seed: int, *, gpu: bool) -> None:
    """Note what one forward ran: operators, Triton launches, GPU kernels and their binaries.

    Raises Refused: with IMPURE, if that breaks the declared purity.
    """
    reference, worker = examination.loaded_reference, examination.worker
    key, inputs = examination.key, reference.inputs.shared.name
    timeout_s = examination.run_timeout_s
    reference.inputs.fill("drawn", seed)
    seen = worker.request(Operators(key, inputs, seed), timeout_s=timeout_s)
    examination.operators = seen["operators"]
    examination.note_origins(seen["origins"])
    needs_launches = not examination.launches or _needs_launches(examination, seed)
    if gpu:
        ran = _observe_kernels(examination)
        examination.gpu_kernels = _named_times(ran)
        examination.binaries = {str(name): str(digest) for name, digest in ran["binaries"].items()}
        examination.share = library_share(examination.gpu_kernels, ran["own"])
    reason = impurity(
        examination.contract.purity,
        examination.operators,
        examination.share,
        examination.launches,
        needs_launches,
    )
    if reason is not None:
        raise Refused(Status.IMPURE, reason)
    passed_on = not any(origins & COMPUTED for origins in seen["origins"])
    if passed_on and any(origins & LIBRARY for origins in seen["origins"]):
        examination.share = 1.0 if gpu else None  # what its own kernels did was to copy
    if examination.contract.purity is not Purity.TRITON:
        return
    computing, own = _of_module(reference, seed)
    if passed_on and examination.launches and computing:
        raise Refused(Status.IMPURE, "its Triton kernels only copy: nothing they store is computed")
    examination.unseen_by_module = frozenset(
        index for index, origins in enumerate(own) if origins & UNSEEN
    )
    _check_origins(examination, "")


def _observe_kernels(examination: Examination) -> Mapping[str, Any]:
    """The worker's answer about one forward on what the inputs hold, with the GPU to itself.

    Beside other work kernels take longer than they do.
    """
    lease = examination.lease
    with lease.hold(exclusive=True, purpose="one profiled call") if lease else nullcontext():
        return examination.worker.request(
            Kernels(examination.key, examination.loaded_reference.inputs.shared.name),
            timeout_s=examination.run_timeout_s,
        )


def _named_times(ran: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    return tuple((str(name), float(time_us)) for name, time_us in ran["kernels"])


def kernels_once_more(examination: Examination, seed: int) -> tuple[tuple[str, float], ...]:
    """GPU kernels of another forward, (name, microseconds). Raises WorkerFailure, WorkerLost."""
    examination.loaded_reference.inputs.fill("drawn", seed)
    return _named_times(_observe_kernels(examination))


def _check_origins(examination: Examination, when: str) -> None:
    """Outputs hold what operators and kernels were seen to make. Raises Refused."""
    unseen = sorted(examination.unseen - examination.unseen_by_module)
    if unseen:
        raise Refused(
            Status.IMPURE,
            f"{when}output {unseen[0]} holds values that no operator and no kernel was seen to "
            f"make, only to copy: compute in the file's Triton kernels",
        )


def check_all_runs(examination: Examination) -> None:
    """Hold every run so far to the declared purity: one that is observed may behave for that.

    Raises Refused: with IMPURE.
    """
    computing = examination.run_operators
    reason = impurity(examination.contract.purity, computing, None, 1, needs_launches=True)
    if reason is not None:
        raise Refused(Status.IMPURE, f"in some runs {reason}")
    if examination.contract.purity is Purity.TRITON:
        _check_origins(examination, "in some runs ")


def _needs_launches(examination: Examination, seed: int) -> bool:
    """Whether the answer is wrong once every Triton launch is a no-op.

    On values of its own: partial results of an earlier call may still lie in the scratch memory
    that this one is given. Where trivial outputs are right, too, because the answer is nothing
    beside its noise, it must be another answer than with the launches, bit by bit.
    """
    reference = examination.loaded_reference
    inputs = reference.inputs
    inputs.fill("drawn", seed + 1)
    expected = reference.expect(inputs.values, seed)
    if expected.answer.changed_inputs:
        inputs.fill("drawn", seed + 1)
    outputs = reference.output_arguments(expected)
    try:
        values = examination.run(inputs.shared, outputs, expected, seed, HowToRun(suppress=True))
    except (WorkerFailure, Refused):
        return True
    try:
        if not expected.compare(values).is_within:
            return True
        if not expected.passing_adversaries():
            return False
    except InputsChanged as ex:
        raise Refused(Status.MUTATED_INPUT, str(ex)) from ex
    without = [value.clone() for value in values]
    if expected.answer.changed_inputs:
        inputs.fill("drawn", seed + 1)
    whole = examination.run(inputs.shared, outputs, expected, seed, HowToRun())
    return not all(map(torch.equal, whole, without))


def _of_module(reference: Reference, seed: int) -> tuple[bool, list[int]]:
    """Whether the module does more than move values about, and the origins of its outputs."""
    lineage = Lineage(by_bytes=False)
    log = OperatorLog(lambda: False, lineage, own_body)
    lineage.begin()
    with log:
        outputs = reference.run_eager(reference.inputs.values, seed)
    # the judge itself looks at the storage of what comes back
    operators = {name: count for name, count in log.counts.items() if name.startswith("aten.")}
    computing = {_short_name(name) for name in computing_operators(operators)} - _MOVING
    return bool(computing), lineage.end(outputs)


def computing_operators(operators: Mapping[str, int]) -> dict[str, int]:
    """The operators of a dispatch log ("aten.mm.default": count) that compute something."""
    return {
        name: count
        for name, count in operators.items()
        if name != DRAWN_MASK and _short_name(name) not in NOT_COMPUTING
    }


def _short_name(operator: str) -> str:
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def library_share(kernels: Sequence[tuple[str, float]], own: Mapping[str, int]) -> float:
    """Share of GPU time, 0..1, in kernels that others than the candidate's file compute with.

    Args:
        kernels: (name, microseconds) as profiled.
        own: names of the `@triton.jit` functions in the file, with how often each was launched. A
            name that more kernels have than were launched is a library's too, and counts for none.
    """
    ran = Counter(name for name, _ in kernels)
    names = frozenset(name for name, count in own.items() if ran[name] <= count)
    total = sum(time for _, time in kernels)
    foreign = sum(
        time
        for name, time in kernels
        if name not in names and not any(part in name for part in _NOT_COMPUTING_KERNELS)
    )
    return foreign / total if total else 0.0


def impurity(
    purity: Purity,
    operators: Mapping[str, int],
    share: float | None,
    launches: int,
    needs_launches: bool,
) -> str | None:
    """Why a candidate breaks the declared purity, or None.

    Args:
        share: `library_share`, None without a GPU.
        launches: Triton launches of one forward.
        needs_launches: whether the answer changes when those launches do nothing; a decoy's does
            not.
    """
    if launches and not needs_launches:
        return "its Triton kernels are a decoy: without them the answer is the same"
    if purity is Purity.LIBRARY:
        return None
    computing = computing_operators(operators)
    if computing:
        listed = ", ".join(f"{name} x{count}" for name, count in sorted(computing.items()))
        is_dropout = any(_short_name(name) in _DROPPING for name in computing)
        return f"library operators compute: {listed}{_DRAW_APART if is_dropout else ''}"
    if share is not None and share > FOREIGN_SHARE:
        return f"{share:.1%} of GPU time is outside the file's Triton kernels"
    return "it launches no Triton kernel" if not launches else None
