from torchcaps.settings import TrainConfig as TrainConfig
from torchcaps.training.allocator import keep_memory as keep_memory
from torchcaps.training.api import resolve_config as resolve_config, train as train
from torchcaps.training.callbacks import (
    Callback as Callback,
    ProgressBar as ProgressBar,
    StopWhen as StopWhen,
    register_callback as register_callback,
)
from torchcaps.training.checkpoint import OptionError as OptionError, load as load, save as save
from torchcaps.training.fitting import Fitted as Fitted, fit as fit
from torchcaps.training.folder import Interrupted as Interrupted, RunFolder as RunFolder
from torchcaps.training.imported import import_weights as import_weights
from torchcaps.training.loop import Trainer as Trainer
from torchcaps.training.optimizers import register_optimizer as register_optimizer
from torchcaps.training.recipes import (
    Recipe as Recipe,
    Row as Row,
    RunBudget as RunBudget,
    default_folder as default_folder,
    list_recipes as list_recipes,
    load_recipe as load_recipe,
    register_recipe as register_recipe,
    resolve_recipe as resolve_recipe,
)
from torchcaps.training.run import Run as Run
from torchcaps.training.schedules import register_schedule as register_schedule
