"""Check what a change claimed against the signatures before and after it."""

from collections.abc import Sequence

from kmem.records import Claim, ClaimCheck, Signature


def check_claims(
    claims: Sequence[Claim], before: Signature, after: Signature
) -> tuple[ClaimCheck, ...]:
    """Each claim beside what was measured.

    A claim is neither held nor falsified where a profile lacks its metric, or where the parent's
    value fulfilled it already: then nothing had to change.

    Args:
        before: signature of the kernel that was changed.
        after: of the kernel that came of it, by the same profiler.
    """
    return tuple(
        _check(claim, before.values.get(claim.metric), after.values.get(claim.metric))
        for claim in claims
    )


def _check(claim: Claim, before: float | None, after: float | None) -> ClaimCheck:
    if after is None or (claim.relative and before is None):
        return ClaimCheck(claim, before, after, None)
    limit = claim.number * before if claim.relative and before is not None else claim.number
    if not _is_within(claim, after, limit):
        return ClaimCheck(claim, before, after, False)
    is_settled = before is not None and not _is_within(claim, before, limit)
    return ClaimCheck(claim, before, after, True if is_settled else None)


def _is_within(claim: Claim, value: float, limit: float) -> bool:
    return value <= limit if claim.comparison == "<=" else value >= limit
