"""Selective scans as PyTorch writes them, as problems: by a product of chunks, and step by step."""

#: Chunks are joined by a product with masked decays; b and c of every head.
PRODUCT = """
import torch
import torch.nn.functional as F
BATCH, CHUNKS, LENGTH, HEADS, STATE, WIDTH = {sizes}
def segsum(x):
    t = torch.cumsum(x, dim=-1)
    mask = torch.tril(torch.ones(x.size(-1), x.size(-1), device=x.device, dtype=bool), diagonal=0)
    return (t[..., :, None] - t[..., None, :]).masked_fill(~mask, -torch.inf)
class Model(torch.nn.Module):
    def forward(self, x, a, b, c, first=None):
        x, a, b, c = (each.reshape(BATCH, CHUNKS, LENGTH, *each.shape[2:]) for each in (x, a, b, c))
        a = a.permute(0, 3, 1, 2)
        t = torch.cumsum(a, dim=-1)
        within = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, torch.exp(segsum(a)), x)
        decay = torch.exp(t[:, :, :, -1:] - t)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, decay, x)
        if first is None:
            first = torch.zeros_like(states[:, :1])
        states = torch.cat([first, states], dim=1)
        decay = torch.exp(segsum(F.pad(t[:, :, :, -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", decay, states)
        {last}
        through = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states[:, :-1], torch.exp(t))
        y = (within + through).reshape(BATCH, CHUNKS * LENGTH, HEADS, WIDTH)
        return {returned}
def get_inputs():
    line = BATCH, CHUNKS * LENGTH, HEADS
    states = torch.randn(*line, STATE), torch.randn(*line, STATE)
    return [torch.rand(*line, WIDTH), {a}, *states{first}]
"""
#: Chunks follow one another in a loop; b and c are those of all heads.
STEPS = """
import torch
BATCH, CHUNKS, LENGTH, HEADS, STATE, WIDTH = {sizes}
class Model(torch.nn.Module):
    def forward(self, x, a, b, c):
        x = x.view(BATCH, CHUNKS, LENGTH, HEADS, WIDTH)
        b = b.view(BATCH, CHUNKS, LENGTH, STATE)
        c = c.view(BATCH, CHUNKS, LENGTH, STATE)
        t = a.view(BATCH, CHUNKS, LENGTH, HEADS).cumsum(2)
        scores = torch.einsum("bkin,bkjn->bkij", c, b).unsqueeze(-1)
        between = t.unsqueeze(3) - t.unsqueeze(2)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril()
        weights = torch.where(mask[:, :, None], between, -torch.inf).exp() * scores
        y = torch.einsum("bkijh,bkjhp->bkihp", weights, x)
        last = t[:, :, -1:]
        states = torch.einsum("bkjn,bkjhp->bkhpn", b, x * (last - t).exp().unsqueeze(-1))
        carried = torch.zeros_like(states[:, 0])
        before = []
        for index in range(CHUNKS):
            before.append(carried)
            carried = carried * last[:, index, 0, :, None, None].exp() + states[:, index]
        through = torch.einsum("bkin,bkhpn->bkihp", c, torch.stack(before, dim=1))
        y = y + through * t.exp().unsqueeze(-1)
        return {returned}
def get_inputs():
    states = [torch.randn(BATCH, CHUNKS * LENGTH, STATE) for _ in range(2)]
    x = torch.randn(BATCH, CHUNKS * LENGTH, HEADS, WIDTH)
    return [x, {a}, *states]
"""
FADING = "-torch.rand(BATCH, CHUNKS * LENGTH, HEADS)"
ANY = "torch.randn(BATCH, CHUNKS * LENGTH, HEADS)"
FIRST = ", torch.randn(BATCH, 1, HEADS, WIDTH, STATE)"


def product(
    sizes: tuple[int, ...], returned: str = "y", first: str = "", a: str = ANY, last: str = "pass"
) -> str:
    return PRODUCT.format(sizes=sizes, returned=returned, first=first, a=a, last=last)


def steps(sizes: tuple[int, ...], returned: str = "y", a: str = FADING) -> str:
    return STEPS.format(sizes=sizes, returned=returned, a=a)
