"""Check what a change claimed against the signatures before and after it."""

from collections.abc import Sequence

from kmem.records import Claim, ClaimCheck, Signature


def check_claims(
    claims: Sequence[Claim], before: Signature, after: Signature
) -> tuple[ClaimCheck, ...]:
    """Each claim beside what was measured.

    A metric that a profile lacks makes its claim neither held nor falsified.

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
    limit = claim.number * before if claim.relative else claim.number
    held = after <= limit if claim.comparison == "<=" else after >= limit
    return ClaimCheck(claim, before, after, held)
