"""The paper's experiments and ours: recipes, training, and errors over draws of the hash functions."""

from annattn.experiments.evaluation import Error, grid, measure
from annattn.experiments.recipe import Recipe, Stage, read_recipe, write_recipe
from annattn.experiments.recipes import RECIPES
from annattn.experiments.training import Progress, train

__all__ = ["RECIPES", "Error", "Progress", "Recipe", "Stage", "grid", "measure", "read_recipe", "train", "write_recipe"]
