"""Small models that are hard to capture, as files that tests write."""

#: By name: a file, and what of it is the model ("" for the file as a problem).
FILES: dict[str, tuple[str, str]] = {
    "casts": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)
        self.to(torch.bfloat16)
    def forward(self, x):
        return torch.relu(self.layer(x))
def get_inputs():
    return [torch.randn(4, 32, dtype=torch.bfloat16)]
""",
        "",
    ),
    "keeps_state": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 16)
        self.hidden = torch.randn(4, 16)
    def forward(self, x):
        self.hidden = torch.tanh(self.layer(torch.cat([x, self.hidden], 1)))
        return self.hidden
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "dictionaries": (
        """
import torch
class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
        self.again = torch.nn.Linear(width, width)
        self.again.weight = self.layer.weight
    def forward(self, batch, *, scale=None):
        y = torch.relu(self.again(self.layer(batch["x"])))
        return {"y": y * scale, "parts": [y, (batch["x"], None)]}
def make(width=32):
    x = torch.randn(4, width)
    return Net(width), {"batch": {"x": x}, "scale": torch.ones(4, 1)}
""",
        "make(width=48)",
    ),
    "routes": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU())
        self.gate = torch.nn.Linear(32, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))
    def forward(self, x):
        x = self.into(x)
        weight, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            y[row] += weight[row, place, None] * expert(x[row])
        return y
def get_inputs():
    return [torch.randn(8, 16)]
""",
        "",
    ),
    "aliases": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sums", torch.zeros(4, 16))
        self.register_buffer("row", self.sums[0])
        self.register_buffer("log", torch.zeros(4, 16))
        self.drop = torch.nn.Dropout(0.5)
        self.eval()
    def forward(self, x, y):
        self.sums.add_(1)
        torch.add(x, 1, out=self.log)
        kept = torch.exp(x)
        same = self.drop(kept)
        same += 1
        return kept * same + self.row * torch.exp(y)
def get_inputs():
    x = torch.randn(4, 16)
    return [x, x]
""",
        "",
    ),
    "counts": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return torch.exp(x) * self.calls
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "draws": (
        """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        torch.rand(3)  # nobody reads it, but what follows comes later
        y = torch.exp(torch.nn.functional.dropout(x, 0.1))
        noise = torch.empty_like(y).uniform_(1, 2)
        return torch.tanh(y + torch.randn(16)) * noise
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "draws_by_value": (
        """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(torch.bernoulli(torch.sigmoid(x)))
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "casts_inside": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(16, 32)
        self.mix = torch.nn.Linear(32, 32)
        self.out = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU())
        self.out.to(torch.bfloat16)
        self.bias = torch.ones(16, dtype=torch.bfloat16)
    def forward(self, x):
        y = self.into(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            y = self.mix(y)
        y = self.out(y.to(torch.bfloat16)) + self.bias
        return y.float() + torch.arange(16, dtype=torch.float32) / 3
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "draws_in_training": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(16, 32)
        self.drop = torch.nn.Dropout(0.5)
        self.out = torch.nn.Linear(32, 8)
    def forward(self, x):
        return self.out(self.drop(torch.relu(self.into(x))))
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "stops": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.scale = torch.nn.Parameter(torch.ones(16))
    def forward(self, x):
        y = torch.tanh(self.layer(x))
        with torch.no_grad():
            z = torch.sigmoid(y)
        return torch.exp(y * self.scale) * z
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "strides": (
        """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.exp(x) * y
def get_inputs():
    return [torch.randn(1, 16).expand(4, 16), torch.randn(4, 32)[:, ::2]]
""",
        "",
    ),
    "norms": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(16)
    def forward(self, x):
        return torch.relu(self.norm(x))
def get_inputs():
    return [torch.randn(4, 16)]
""",
        "",
    ),
    "averages": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key = torch.nn.Linear(16, 16)
        self.out = torch.nn.Linear(16, 8)
    def forward(self, x, state):
        state.mul_(0.9).add_(torch.tanh(self.key(x)))
        return self.out(state).relu()
def get_inputs():
    return [torch.randn(4, 16), torch.randn(4, 16)]
""",
        "",
    ),
    "in_place": (
        """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(True)
        )
        self.eval()
    def forward(self, x):
        y = self.body(x)
        y += 1
        return y.mul_(2)
def get_inputs():
    return [torch.randn(2, 3, 8, 8)]
""",
        "",
    ),
    "blocks": (
        """
import torch
class Attention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.LayerNorm(width)
        self.into = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.into(self.norm(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, s, d))
class Feed(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
class Model(torch.nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        parts = [each for _ in range(layers) for each in (Attention(64, 8), Feed(64))]
        self.layers = torch.nn.Sequential(*parts)
        self.head = torch.nn.Linear(64, 10)
        self.eval()
    def forward(self, x):
        return self.head(self.layers(x).mean(1))
def get_inputs():
    return [torch.randn(6, 20, 64)]
""",
        "",
    ),
}


def model_named(name: str, directory: object) -> str:
    """The file of a model written to a directory; what names the model for kmem."""
    text, what = FILES[name]
    place = directory / f"{name}.py"  # type: ignore[operator]
    place.write_text(text, encoding="utf-8")
    return f"{place}:{what}" if what else str(place)
