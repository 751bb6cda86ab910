"""The loop, optimisation, checkpoints, resume, the run folder."""

from torchcaps.training.allocator import keep_memory as keep_memory
from torchcaps.training.checkpoint import OptionError as OptionError
from torchcaps.training.checkpoint import load as load
from torchcaps.training.config import TrainConfig as TrainConfig
from torchcaps.training.loop import Interrupted as Interrupted
from torchcaps.training.loop import train as train
from torchcaps.training.objective import ClassifierObjective as ClassifierObjective
from torchcaps.training.objective import MarginObjective as MarginObjective
from torchcaps.training.objective import Objective as Objective
from torchcaps.training.objective import SpreadObjective as SpreadObjective
from torchcaps.training.objective import create_objective as create_objective
from torchcaps.training.recipes import Budget as Budget
from torchcaps.training.recipes import Config as Config
from torchcaps.training.recipes import Recipe as Recipe
from torchcaps.training.recipes import Row as Row
from torchcaps.training.recipes import list_recipes as list_recipes
from torchcaps.training.recipes import load_recipe as load_recipe
from torchcaps.training.recipes import register_recipe as register_recipe
from torchcaps.training.run_folder import RunFolder as RunFolder
from torchcaps.training.transforming import train_transforming as train_transforming
from torchcaps.training.transforming import transformed_pairs as transformed_pairs
from torchcaps.training.transforming_run import TransformingConfig as TransformingConfig
from torchcaps.training.transforming_run import load_transforming as load_transforming
from torchcaps.training.transforming_run import run_transforming as run_transforming
