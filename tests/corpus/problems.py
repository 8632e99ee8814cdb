"""Small problems that the corpus of candidates is judged on, as source text.

Each is what a user's file would hold.
"""

SCALE_RELU = """
import torch
import torch.nn as nn

rows = 6
columns = 40


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x * self.scale)


def get_inputs():
    return [torch.rand(rows, columns)]


def get_init_inputs():
    return [1.5]
"""

ROW_SUM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sum(x, dim=1, keepdim=True)


def get_inputs():
    return [torch.rand(8, 300)]
"""

MATMUL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(24, 64), torch.rand(64, 16)]
"""

LINEAR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 12)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.rand(10, 20)]


def get_init_inputs():
    return [20]
"""

BATCH_NORM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.rand(16, 12)]


def get_init_inputs():
    return [12]
"""

MIN_AND_MAX = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.amin(x, dim=1), torch.amax(x, dim=1)


def get_inputs():
    return [torch.randn(9, 50)]
"""

ARGMAX = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.argmax(x, dim=1)


def get_inputs():
    return [torch.randn(9, 50)]
"""

CUMSUM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)


def get_inputs():
    return [torch.randn(5, 64)]
"""

UPPER = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.triu(torch.matmul(a, b))


def get_inputs():
    return [torch.triu(torch.rand(32, 32)), torch.triu(torch.rand(32, 32))]
"""

#: The mean of a softmax is 1/n whatever the input: nothing can tell a computation from a constant.
SOFTMAX_MEAN = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.mean(torch.softmax(x.clamp(-1, 1).nan_to_num(), dim=1), dim=1)


def get_inputs():
    return [torch.rand(8, 32)]
"""

#: bfloat16 inputs and outputs.
HALF = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


def get_inputs():
    return [torch.randn(7, 33).bfloat16()]
"""

#: Modifies its first input, which a candidate must do as well.
IN_PLACE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        x.add_(y)
        return x * 2


def get_inputs():
    return [torch.rand(6, 20), torch.rand(6, 20)]
"""

SOFTMAX = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.rand(5, 70)]
"""

MLP = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))

    def forward(self, x):
        return self.net(x)


def get_inputs():
    return [torch.rand(6, 10)]


def get_init_inputs():
    return [10, 8]
"""

VIEW = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1)


def get_inputs():
    return [torch.rand(6, 9)]
"""

#: Refuses values outside [0, 1]: on a GPU by a device-side assertion, after which the process is of
#: no more use.
PROBABILITIES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, predictions, targets):
        losses = nn.functional.binary_cross_entropy(predictions, targets, reduction="none")
        return losses.mean(dim=1)


def get_inputs():
    return [torch.rand(8, 64), torch.randint(0, 2, (8, 64)).float()]
"""

#: Refuses indices out of range, as in a shorter table.
GATHER = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, table, index):
        return torch.gather(table, 1, index) * 2


def get_inputs():
    return [torch.randn(8, 16), torch.randint(0, 16, (8, 16))]
"""
