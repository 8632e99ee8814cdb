"""What the source check refuses and what it lets pass, by a few lines each."""

import pytest

from kmem.measure.source_check import check_source

REFUSED = [
    pytest.param(
        ("import operator\nimport torch\ng = operator.attrgetter('__globals__')\n"),
        id="attrgetter",
    ),
    pytest.param(
        ("from operator import attrgetter as pick\n"),
        id="from_op",
    ),
    pytest.param(
        ("import contextlib\nm = contextlib.sys.modules['instruments']\n"),
        id="ctxsys",
    ),
    pytest.param(
        ("from contextlib import sys\n"),
        id="ctxsys2",
    ),
    pytest.param(
        ("import collections as c\nx = c._sys.modules\n"),
        id="coll",
    ),
    pytest.param(
        ("g = getattr\nx = g(object, '__subcl' + 'asses__')\n"),
        id="getattr_alias",
    ),
    pytest.param(
        ("x = list(map(getattr, [1], ['real']))\n"),
        id="map_getattr",
    ),
    pytest.param(
        ("import functools\ng = functools.partial(getattr, 1)\n"),
        id="partial_getattr",
    ),
    pytest.param(
        ("import typing\nclass A:\n    x: 'exec(1)'\ntyping.get_type_hints(A)\n"),
        id="hints",
    ),
    pytest.param(
        ("from typing import get_type_hints as h\n"),
        id="hints2",
    ),
    pytest.param(
        ("def f(o):\n    match o:\n        case object(__globals__=g):\n            return g\n"),
        id="match",
    ),
    pytest.param(
        ("def never():\n    import math as exec\nexec('1')\n"),
        id="dead_alias",
    ),
    pytest.param(
        ("if False:\n    eval = None\neval('1')\n"),
        id="dead_if",
    ),
    pytest.param(
        ("[eval('1') or (eval := 2) for _ in [0]]\n"),
        id="walrus",
    ),
    pytest.param(
        ("class A:\n    if 0:\n        exec = 1\n    exec('1')\n"),
        id="classdead",
    ),
    pytest.param(
        ("import torch.nn.functional as F\nF.torch.library.custom_op\n"),
        id="F.torch.library",
    ),
    pytest.param(
        ("import torch\nt = torch.utils.data.dataloader.threading.Thread\n"),
        id="dl",
    ),
    pytest.param(
        ("from torch.utils.data.dataloader import threading\n"),
        id="dl2",
    ),
    pytest.param(
        ("import torch.utils.data.dataloader as d\n"),
        id="dl3",
    ),
    pytest.param(
        ("import torch\ntorch.nn.DataParallel\n"),
        id="par",
    ),
    pytest.param(
        ("from torch.nn.parallel import parallel_apply\n"),
        id="par2",
    ),
    pytest.param(
        ("import torch\ntorch.nn.modules.module.register_module_forward_hook(print)\n"),
        id="hook",
    ),
    pytest.param(
        ("from torch.nn.modules.module import register_module_forward_pre_hook as r\n"),
        id="hook2",
    ),
    pytest.param(
        ("def f(x):\n    type(x).copy_ = None\n"),
        id="typecopy",
    ),
    pytest.param(
        ("def f(x):\n    T = type(x)\n    T.copy_ = None\n"),
        id="typecopy2",
    ),
    pytest.param(
        ("def f(x):\n    x.__class__.copy_ = None\n"),
        id="typecopy3",
    ),
    pytest.param(
        ("import torch\nT = [torch.Tensor][0]\nT.copy_ = None\n"),
        id="typecopy4",
    ),
    pytest.param(
        ("import torch\nfor T in (torch.Tensor,):\n    T.copy_ = None\n"),
        id="typecopy5",
    ),
    pytest.param(
        ("import torch\nT = torch.Tensor\nsetattr(T, 'copy_', None)\n"),
        id="setattr_t",
    ),
    pytest.param(
        ("def f(x):\n    setattr(type(x), 'copy_', None)\n"),
        id="setattr_type",
    ),
    pytest.param(
        ("import torch\nL = type('L', (torch.Tensor,), {})\n"),
        id="type3",
    ),
    pytest.param(
        ("from torch import Tensor as Base\nclass L(Base): pass\n"),
        id="sub",
    ),
    pytest.param(
        ("import torch\nB = torch.nn.Parameter\nclass L(B): pass\n"),
        id="sub2",
    ),
    pytest.param(
        ("class M(type): pass\n"),
        id="meta",
    ),
    pytest.param(
        ("class L(metaclass=print): pass\n"),
        id="meta2",
    ),
    pytest.param(
        ("# -*- coding: raw_unicode_escape -*-\nx = 1\n"),
        id="cookie",
    ),
    pytest.param(
        ("#!/usr/bin/python\n# vim: set fileencoding=utf-7 :\n"),
        id="cookie2",
    ),
    pytest.param(
        ("\ufeffx = 1\n"),
        id="bom",
    ),
    pytest.param(
        ("x = 1\n\x0cy = 2\n"),
        id="ff",
    ),
    pytest.param(
        ("x = '\u202e'\n"),
        id="bidi",
    ),
    pytest.param(
        ("from torch.utils.benchmark import Timer\nTimer('1')\n"),
        id="benchmark",
    ),
    pytest.param(
        ("import torch.fx\n"),
        id="fx",
    ),
    pytest.param(
        ("import torch\ntorch.fx.GraphModule\n"),
        id="fx2",
    ),
    pytest.param(
        ("import torch.package\n"),
        id="pkg",
    ),
    pytest.param(
        ("import torch\ntorch.serialization.os.system\n"),
        id="ser",
    ),
    pytest.param(
        ("import torch\ndef f(m):\n    m.set_default_dtype(m.float16)\nf(torch)\n"),
        id="bare",
    ),
    pytest.param(
        ("import torch\nd = {'t': torch}\n"),
        id="bare2",
    ),
    pytest.param(
        ("import torch\ndef f(m=torch):\n    return m\n"),
        id="default",
    ),
    pytest.param(
        ("import torch.nn.functional as F\ndef f():\n    return F\n"),
        id="ret",
    ),
    pytest.param(
        ("import numpy as np\nnp.os\n"),
        id="npos",
    ),
    pytest.param(
        ("import numpy\nnumpy.lib.npyio.os\n"),
        id="np2",
    ),
    pytest.param(
        ("import numpy.f2py\n"),
        id="np3",
    ),
    pytest.param(
        ("from numpy.ctypeslib import load_library\n"),
        id="np4",
    ),
    pytest.param(
        ("from triton.runtime import interpreter\n"),
        id="triton rt",
    ),
    pytest.param(
        ("import triton\ntriton.runtime.jit.os\n"),
        id="triton jit",
    ),
    pytest.param(
        ("import triton\ntriton.knobs.compilation.x\n"),
        id="knobs",
    ),
    pytest.param(
        ("import triton\ntriton.knobs.runtime.interpret = True\n"),
        id="knobset",
    ),
    pytest.param(
        ("class A:\n    def __del__(self): pass\n"),
        id="del",
    ),
    pytest.param(
        ("class A:\n    def __torch_function__(self): pass\n"),
        id="tf",
    ),
    pytest.param(
        ("class A:\n    def f(self): self.__dict__.update({})\n"),
        id="dict",
    ),
    pytest.param(
        ("def f(g): return g.gi_frame.f_back\n"),
        id="gi",
    ),
    pytest.param(
        ("import warnings\nw = warnings.catch_warnings()\nw._module.sys\n"),
        id="modattr",
    ),
    pytest.param(
        ("import os\nx = os.environ.get('A')\n"),
        id="os",
    ),
    pytest.param(
        ("import torch\ntorch.initial_seed()\n"),
        id="initial_seed",
    ),
    pytest.param(
        ("import torch\ntorch.random.get_rng_state()\n"),
        id="gen",
    ),
    pytest.param(
        ("import torch\ntorch.cuda.random.get_rng_state()\n"),
        id="cudagen",
    ),
    pytest.param(
        ("import torch\ntorch.set_num_threads(1)\n"),
        id="set",
    ),
    pytest.param(
        ("x = vars()\n"),
        id="vars",
    ),
    pytest.param(
        ("help('modules')\n"),
        id="help",
    ),
    pytest.param(
        (
            "import functools\n"
            "def d(s):\n"
            "    return lambda f: f\n"
            "@d('''\n"
            "def evil(x):\n"
            "''')\n"
            "def k(x): pass\n"
        ),
        id="deco",
    ),
    pytest.param(
        ("import torch\ntorch.ops.load_library('x')\n"),
        id="ops",
    ),
    pytest.param(
        ("import torch\ntorch.ops.mylib.f\n"),
        id="ops2",
    ),
    pytest.param(
        ("from torch import compile\n"),
        id="compile",
    ),
    pytest.param(
        ("import torch\nc = torch.compile\n"),
        id="compile2",
    ),
    pytest.param(
        ("import torch._dynamo\n"),
        id="compile3",
    ),
    pytest.param(
        ("import torch.nn.utils.parametrize as p\np.copyreg\n"),
        id="nnutilsp",
    ),
    pytest.param(
        ("import torch.utils.checkpoint as c\nc.os\n"),
        id="ckpt",
    ),
    pytest.param(
        ("def f(x): return x.untyped_storage()\n"),
        id="storage",
    ),
    pytest.param(
        ("from torch.library import Library\n"),
        id="lib",
    ),
    pytest.param(
        ("import enum\nenum.sys\n"),
        id="enum",
    ),
    pytest.param(
        ("import dataclasses\ndataclasses.sys\n"),
        id="dc",
    ),
    pytest.param(
        ("from dataclasses import builtins\n"),
        id="dc2",
    ),
    pytest.param(
        ("from dataclasses import make_dataclass\n"),
        id="dc3",
    ),
    pytest.param(
        ("import functools\nfunctools.get_cache_token.__globals__\n"),
        id="ft",
    ),
    pytest.param(
        ("def f(x): return x.__reduce_ex__(2)\n"),
        id="reduce",
    ),
    pytest.param(
        ("import typing\ntyping.sys\n"),
        id="print",
    ),
    pytest.param(
        ("from torch import *\n"),
        id="star",
    ),
    pytest.param(
        ("from . import x\n"),
        id="rel",
    ),
    pytest.param(
        ("import torch\ntorch.os.system\n"),
        id="torchos",
    ),
    pytest.param(
        ("from torch import os\n"),
        id="from torch os",
    ),
    pytest.param(
        ("import torch, math\nm = torch if 1 else math\nm.set_default_dtype(m.float16)\n"),
        id="cond",
    ),
    pytest.param(
        ("f = lambda e=eval: e\n"),
        id="lambda",
    ),
    pytest.param(
        ("def f():\n    global exec\n    exec('1')\n"),
        id="global",
    ),
    pytest.param(
        ("def f():\n    class A:\n        y = eval('1')\n"),
        id="nested",
    ),
    pytest.param(
        ("x = object.__getattribute__\n"),
        id="objectgetattr",
    ),
    pytest.param(
        ("class A:\n    def f(self): return super().__getattribute__('x')\n"),
        id="sup",
    ),
    pytest.param(
        ("@eval\ndef f(): pass\n"),
        id="decorator",
    ),
    pytest.param(
        ("(lambda g: g)(getattr)\n"),
        id="lambdacall",
    ),
    pytest.param(
        ("x = hasattr\n"),
        id="hasattr",
    ),
    pytest.param(
        ("import packaging.version as v\nv.re.sys\n"),
        id="packaging",
    ),
    pytest.param(
        ("import packaging.tags\n"),
        id="pack2",
    ),
]
ALLOWED = [
    pytest.param(
        (
            "import torch\n"
            "class M(torch.nn.Module):\n"
            "    def forward(self, input):\n"
            "        return input + 1\n"
        ),
        id="input",
    ),
    pytest.param(
        ("def f(x):\n    open = x > 1\n    compile = 2\n    return open, compile\n"),
        id="locals",
    ),
    pytest.param(
        ("y = [input for input in range(3)]\n"),
        id="compr",
    ),
    pytest.param(
        (
            "import torch\n"
            "def f(x):\n"
            "    out = torch.float32\n"
            "    return out\n"
            "def g(x):\n"
            "    out = torch.empty(3)\n"
            "    out[0] = 1\n"
            "    return out\n"
        ),
        id="out",
    ),
    pytest.param(
        ("class A:\n    compile = 3\n    def open(self): return self.compile\n"),
        id="class attr",
    ),
    pytest.param(
        (
            "import triton, triton.language as tl\n"
            "@triton.autotune(configs=[triton.Config({'B': 1}, num_warps=4)], key=['n'])\n"
            "@triton.jit\n"
            "def k(x, n, B: tl.constexpr): pass\n"
        ),
        id="autotune",
    ),
    pytest.param(
        (
            "import functools\n"
            "@functools.lru_cache(maxsize=None)\n"
            "def f(x): return x\n"
            "g = functools.partial(f, 1)\n"
            "w = functools.reduce(max, [1, 2])\n"
        ),
        id="ft",
    ),
    pytest.param(
        (
            "from typing import Optional, Tuple, NamedTuple\n"
            "from collections import namedtuple, defaultdict, OrderedDict\n"
            "P = namedtuple('P', 'a b')\n"
        ),
        id="typing",
    ),
    pytest.param(
        (
            "from dataclasses import dataclass, field\n"
            "@dataclass(frozen=True)\n"
            "class C:\n"
            "    a: int = 1\n"
            "    b: list = field(default_factory=list)\n"
        ),
        id="dc",
    ),
    pytest.param(
        (
            "import torch\n"
            "from packaging import version\n"
            "NEW = version.parse(torch.__version__) >= version.parse('2.0')\n"
        ),
        id="packaging",
    ),
    pytest.param(
        (
            "import torch\n"
            "def f(self):\n"
            "    return getattr(self, 'w', None), hasattr(torch, 'compile_x'), type(self).__name__\n"  # noqa: E501
        ),
        id="getattr",
    ),
    pytest.param(
        (
            "import triton\n"
            "from triton.runtime import driver\n"
            "def f(): return driver.active.utils.get_device_properties(0)['multiprocessor_count']\n"
        ),
        id="driver",
    ),
    pytest.param(
        (
            "from triton.language.extra import libdevice\n"
            "import triton\n"
            "@triton.jit\n"
            "def f(x): return libdevice.tanh(x)\n"
        ),
        id="libdevice",
    ),
    pytest.param(
        ("import triton.language as tl\ny = tl.extra.cuda.libdevice\n"),
        id="libdevice2",
    ),
    pytest.param(
        (
            "import torch\n"
            "N = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 1\n"  # noqa: E501
        ),
        id="props",
    ),
    pytest.param(
        (
            "import torch\n"
            "from torch import nn\n"
            "from torch.nn import functional as F, init\n"
            "class M(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        nn.init.zeros_(nn.Parameter(torch.zeros(3)))\n"
            "        self.f = F.relu\n"
        ),
        id="nn",
    ),
    pytest.param(
        (
            "import torch\n"
            "class Fn(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n"
            "        ctx.n = 3\n"
            "        return x\n"
        ),
        id="af",
    ),
    pytest.param(
        ("import torch\nfrom torch.library import triton_op, wrap_triton\n"),
        id="triton_op",
    ),
    pytest.param(
        ("from triton.tools.tensor_descriptor import TensorDescriptor\n"),
        id="td",
    ),
    pytest.param(
        ("import torch\nT = {'relu': torch.relu, torch.float32: 1}\nT['x'] = torch.neg\n"),
        id="dict",
    ),
    pytest.param(
        ("import torch, triton.language as tl\nMAP = {torch.float16: tl.float16}\n"),
        id="dtype",
    ),
    pytest.param(
        (
            "import enum\n"
            "class E(enum.Enum):\n"
            "    A = 1\n"
            "class D(enum.IntEnum):\n"
            "    B = enum.auto()\n"
        ),
        id="enum",
    ),
    pytest.param(
        ("import torch\nfrom torch.nn.attention import SDPBackend, sdpa_kernel\n"),
        id="sdpa",
    ),
    pytest.param(
        ("import torch\ny = torch.utils.checkpoint.checkpoint\n"),
        id="ckpt",
    ),
    pytest.param(
        ("# -*- coding: utf-8 -*-\nx = 1\n"),
        id="cookie",
    ),
    pytest.param(
        ("import torch\na = torch.backends.cuda.matmul.allow_tf32\n"),
        id="backend",
    ),
    pytest.param(
        (
            "import torch\n"
            "@torch.no_grad()\n"
            "def f(x):\n"
            "    with torch.inference_mode():\n"
            "        return torch.ops.aten.mm.default(x, x)\n"
        ),
        id="noatt",
    ),
    pytest.param(
        (
            "import torch\n"
            "from functools import cached_property\n"
            "class A:\n"
            "    @cached_property\n"
            "    def x(self): return 1\n"
            "    @property\n"
            "    def y(self): return 2\n"
        ),
        id="cached",
    ),
    pytest.param(
        ("import warnings\nwarnings.warn('x')\nwith warnings.catch_warnings():\n    pass\n"),
        id="warn",
    ),
    pytest.param(
        (
            "import math, itertools, copy\n"
            "x = math.prod([1]); y = itertools.product([1]); z = copy.deepcopy([])\n"
        ),
        id="mod",
    ),
    pytest.param(
        ("def f(id, type, dir, vars): return id, vars\n"),
        id="id",
    ),
    pytest.param(
        (
            "class A:\n"
            "    def __setstate__x(self): pass\n"
            "    def __init__(self): self.modules_ = list(self.modules())\n"
        ),
        id="state",
    ),
    pytest.param(
        ("import numpy as np\nx = np.random.rand(3).astype(np.float32)\n"),
        id="np",
    ),
    pytest.param(
        ("import torch, triton\nif triton.__version__ >= '3.0' and torch.version.cuda: pass\n"),
        id="version",
    ),
    pytest.param(
        (
            "import triton\n"
            "@triton.heuristics({'B': lambda a: triton.next_power_of_2(a['n'])})\n"
            "@triton.jit\n"
            "def k(n, B): pass\n"
        ),
        id="heur",
    ),
    pytest.param(
        ("try:\n    pass\nexcept Exception as e:\n    raise RuntimeError(str(e)) from e\n"),
        id="exc",
    ),
    pytest.param(
        ("import torch\nm = torch.finfo(torch.float32).min\n"),
        id="finfo",
    ),
    pytest.param(
        (
            "from triton.experimental import gluon\n"
            "from triton.experimental.gluon import language as gl\n"
        ),
        id="gluon",
    ),
    pytest.param(
        ("from torch.nn.utils import parametrizations, fusion\n"),
        id="checkp",
    ),
    pytest.param(
        (
            "import torch\n"
            "class A(torch.nn.Sequential):\n"
            "    def __getattr__(self, n): return super().__getattr__(n)\n"
        ),
        id="newmod",
    ),
    pytest.param(
        ("from typing import Generic, TypeVar\nT = TypeVar('T')\nclass L(list): pass\n"),
        id="subcl",
    ),
    pytest.param(
        ("from contextlib import contextmanager, nullcontext\n@contextmanager\ndef c(): yield\n"),
        id="ctx",
    ),
    pytest.param(
        ("import torch\ns = torch.cuda.current_stream()\nwith torch.cuda.device(0): pass\n"),
        id="stream",
    ),
    pytest.param(
        (
            "import torch\n"
            "def f(x): return isinstance(x, torch.Tensor) and type(x) is torch.Tensor\n"
        ),
        id="isinst",
    ),
    pytest.param(
        (
            "from __future__ import annotations\n"
            "import torch\n"
            "def f(x: torch.Tensor, m: 'torch.nn.Module') -> torch.Tensor: return x\n"
        ),
        id="ann",
    ),
]


@pytest.mark.parametrize("source", REFUSED)
def test_what_no_kernel_needs_is_refused_with_what_to_do(source: str) -> None:
    found = check_source(source)
    assert found
    assert all(refusal.why and refusal.line >= 1 for refusal in found)


@pytest.mark.parametrize("source", ALLOWED)
def test_what_kernels_need_passes(source: str) -> None:
    assert [str(refusal) for refusal in check_source(source)] == []


@pytest.mark.parametrize(
    "source",
    ["x = " + "(" * 5000 + ")" * 5000, "x = y" + ".a" * 5000, "x = " + "-" * 3000 + "1"],
    ids=["parentheses", "attributes", "signs"],
)
def test_text_that_nests_too_deeply_is_no_python(source: str) -> None:
    with pytest.raises(SyntaxError, match="nest|parentheses"):
        check_source(source)
