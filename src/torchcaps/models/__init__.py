"""One file, one published system, and the registry that finds them."""

from torchcaps.models._registry import Passport as Passport
from torchcaps.models._registry import create_model as create_model
from torchcaps.models._registry import list_models as list_models
from torchcaps.models._registry import model_passport as model_passport
from torchcaps.models._registry import register_model as register_model
from torchcaps.models.capsnet import CapsNet as CapsNet
from torchcaps.models.matrix_caps import MatrixCaps as MatrixCaps
