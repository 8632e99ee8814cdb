"""Checksums of tensors' bits under secret weights, so that any change of an input is seen.

Equal for equal bits in one process, changed by any single change; sums of consecutive parts add up
to the sum of the whole, modulo 2**64. A judge takes several checksums of every input of every case,
so on a GPU a checksum is one pass over the bits.

Source: Carter and Wegman, "Universal classes of hash functions", 1979 (a linear hash collides only
for those who know its weights).
"""

import secrets

import torch
import triton
import triton.language as tl

#: Drawn anew in every process, so that no candidate can change inputs in a way that leaves their
#: checksum as it was.
_KEYS = tuple(secrets.randbits(62) | 1 for _ in range(3))
#: Elements at once where there is no GPU.
_CHUNK = 2**22
#: Elements of one step of a program of the kernel, and how many programs there are at most.
_BLOCK, _PROGRAMS = 4096, 2048


@triton.jit
def weigh(place, one, two, three):
    """An odd number that follows from the keys and the place of an element."""
    weight = place * one.to(tl.int64) + two.to(tl.int64)
    return ((weight ^ (weight >> 31)) * three.to(tl.int64)) | 1


@triton.jit(do_not_specialize=["first", "count"])
def weigh_words(words, sums, first, count, one, two, three, BLOCK: tl.constexpr):
    """Each program adds up its blocks: sums[program] = sum of words[i] * weigh(first + i).

    Program p takes blocks p, p + programs, p + 2 * programs, ...
    """
    total = tl.zeros((BLOCK,), tl.int64)
    block = tl.program_id(0).to(tl.int64)
    while (block + 1) * BLOCK <= count:  # whole blocks, in whole vectors
        place = block * BLOCK + tl.arange(0, BLOCK)
        word = tl.load(words + place, eviction_policy="evict_first").to(tl.int64)
        total += word * weigh(place + first, one, two, three)
        block += tl.num_programs(0)
    place = block * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + place, mask=place < count, other=0).to(tl.int64)
    total += word * weigh(place + first, one, two, three)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


def bit_sum(value: torch.Tensor, start: int = 0) -> int:
    """The checksum of a tensor's elements, below 2**64.

    Args:
        start: how many elements lie before these, if the tensor is a part of something.
    """
    is_complex = value.is_complex()
    if is_complex:
        value = torch.view_as_real(value)
    as_integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
        value.element_size()
    ]
    # a flattened view may have gaps, which the kernel would read too
    words = value.detach().reshape(-1).contiguous().view(as_integer)
    first = start * (2 if is_complex else 1)
    on_device = words.is_cuda and words.numel() and not triton.knobs.runtime.interpret
    total = _sum_on_device(words, first) if on_device else _sum_in_chunks(words, first)
    return int(total) & (2**64 - 1)


def _sum_on_device(words: torch.Tensor, first: int) -> torch.Tensor:
    programs = min(_PROGRAMS, triton.cdiv(words.numel(), _BLOCK))
    sums = torch.empty(programs, dtype=torch.int64, device=words.device)
    weigh_words[(programs,)](words, sums, first, words.numel(), *_KEYS, BLOCK=_BLOCK, num_warps=8)
    return sums.sum()


def _sum_in_chunks(words: torch.Tensor, first: int) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.numel(), _CHUNK):
        part = words[begin : begin + _CHUNK].to(torch.int64)
        total += _weights(first + begin, part.numel(), part.device).mul_(part).sum()
    return total


def _weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    """What `weigh` gives for first, first + 1, ...: (count,) int64."""
    places = torch.arange(first, first + count, dtype=torch.int64, device=device)
    weights = places.mul_(_KEYS[0]).add_(_KEYS[1])
    return weights.bitwise_xor_(weights >> 31).mul_(_KEYS[2]).bitwise_or_(1)
