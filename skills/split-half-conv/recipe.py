"""Writes fp32 convolutions as three products of fp16 parts, as exact as fp32.

See kmem/codegen/convolutions/staged_conv.py.
"""

from kmem.codegen.convolutions.staged_recipe import StagedConv

RECIPE = StagedConv(terms=3)
