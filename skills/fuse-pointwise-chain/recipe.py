"""Writes one flat kernel for a chain of pointwise operators."""

from kmem.codegen.rows.recipe import PointwiseRecipe

RECIPE = PointwiseRecipe()
