"""Writes softmax and log-softmax of any row length: in registers, online over a loop, or with a row
shared by several programs.
"""

from kmem.codegen.row_recipe import RowRecipe

RECIPE = RowRecipe("softmax", ("softmax", "log_softmax", "logsumexp", "max"), element_output=True)
