from torchcaps import (
    data as data,
    evaluation as evaluation,
    exporting as exporting,
    functional as functional,
    models as models,
    nn as nn,
    ops as ops,
    reporting as reporting,
    tasks as tasks,
    testing as testing,
    training as training,
    viz as viz,
)
from torchcaps.explorer import explore as explore
from torchcaps.exporting import export as export
from torchcaps.models import create_model as create_model, list_models as list_models
from torchcaps.nn import record_routing as record_routing, set_impl as set_impl
from torchcaps.reporting import (
    Predictor as Predictor,
    compare as compare,
    diagnose as diagnose,
    evaluate as evaluate,
    predict as predict,
    report as report,
)
from torchcaps.reproduction import (
    audit as audit,
    cross_validate as cross_validate,
    reproduce as reproduce,
)
from torchcaps.training import fit as fit, load as load, save as save, train as train
from torchcaps.training.classifier import CapsuleClassifier as CapsuleClassifier
from torchcaps.types import Capsules as Capsules, ModelSpec as ModelSpec, Routed as Routed

__version__: str
