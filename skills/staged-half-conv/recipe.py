"""Writes fp32 convolutions as one product of scaled fp16, bf16 and fp16 as they are.

See kmem/codegen/convolutions/staged_conv.py.
"""

from kmem.codegen.convolutions.staged_recipe import StagedConv

RECIPE = StagedConv(terms=1)
