"""The loop, optimization, checkpoints, resume, the run folder."""

from torchcaps import registry as _registry
from torchcaps.settings import TrainConfig as TrainConfig
from torchcaps.training.allocator import keep_memory as keep_memory
from torchcaps.training.api import Fitted as Fitted
from torchcaps.training.api import fit as fit
from torchcaps.training.api import train as train
from torchcaps.training.callbacks import Callback as Callback
from torchcaps.training.callbacks import register_callback as register_callback
from torchcaps.training.checkpoint import OptionError as OptionError
from torchcaps.training.checkpoint import load as load
from torchcaps.training.checkpoint import save as save
from torchcaps.training.imported import import_weights as import_weights
from torchcaps.training.loop import Interrupted as Interrupted
from torchcaps.training.optimizers import register_optimizer as register_optimizer
from torchcaps.training.recipes import Budget as Budget
from torchcaps.training.recipes import Recipe as Recipe
from torchcaps.training.recipes import Row as Row
from torchcaps.training.recipes import default_folder as default_folder
from torchcaps.training.recipes import list_recipes as list_recipes
from torchcaps.training.recipes import load_recipe as load_recipe
from torchcaps.training.recipes import register_recipe as register_recipe
from torchcaps.training.recipes import resolve_recipe as resolve_recipe
from torchcaps.training.run import Run as Run
from torchcaps.training.schedules import register_schedule as register_schedule

_registry.import_submodules(
    __name__
)  # a file beside these may register schedules, optimizers or callbacks
