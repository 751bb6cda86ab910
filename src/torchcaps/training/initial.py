"""Begin a training with the weights of another one: the setting `init`."""

from pathlib import Path

from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.models import list_models, weights_file
from torchcaps.models._pretrained import fitting_weights, take_weights
from torchcaps.nn.generator import on_meta
from torchcaps.training.checkpoint import SEPARATOR, build_model, model_file
from torchcaps.training.files import load_tensors, save_tensors
from torchcaps.types import Json, Names, WrappedNetwork, find_network, unwrap
from torchcaps.words import join_names

MAX_NAMES = 3  # of new tensors, in a sentence


class InitialWeights:
    """Weights of another model, from which a training takes those that fit.

    Args:
        model: takes the weights that fit; its others stay as they are. Of a network within other
            modules they may be those of the network, or of the whole.
        source: a run or a folder that `save` has written, a model file, or the name of a model
            whose weights come with the package.
        classes: names of the classes of the training. Where those of the source are others, the
            layers that depend on their number are left out even if they fit.
        copy: file of a run that has begun with these weights; read in place of the source where it
            exists, so that a run needs no other folder to continue.

    Attributes:
        sentence: what was taken and what is new.

    Raises:
        RunError: the source is absent, damaged, or no model.
        ArgumentError: no weights fit.
    """

    def __init__(
        self, model: nn.Module, source: str, classes: Names, copy: Path | None = None
    ) -> None:
        self.source = source
        self.copy = copy
        if copy and copy.exists():
            self.tensors = load_tensors(copy)[0]
        else:
            path = Path(source)
            if not path.exists() and source in list_models(pretrained=True):
                path = weights_file(source)
            self.tensors, description = load_tensors(model_file(path))
            if "model" not in description:
                raise ArgumentError("init", f"expected a run or a model file, got {source}")
            if description.get("classes") != list(classes):
                for name in _class_weights(description):
                    del self.tensors[name]
        network = find_network(model)
        module = unwrap(network)
        if isinstance(network, WrappedNetwork):
            module = network.outer
            if not fitting_weights(module.state_dict(), self.tensors):
                module = unwrap(network.entry)
        state = module.state_dict()
        loaded = take_weights(module, self.tensors)
        if not loaded:
            raise ArgumentError(
                "init",
                f"expected weights of {type(module).__name__}, got {self.source}, of which no name "
                "and shape fits",
            )
        new = [name for name in state if name not in loaded]
        count = sum(state[name].numel() for name in loaded)
        total = sum(tensor.numel() for tensor in state.values())
        self.sentence = (
            f"init: {len(loaded)} of {len(state)} tensors ({100 * count / total:.0f} % of the "
            f"weights) come from {self.source}; new: {join_names(new, MAX_NAMES) or 'none'}"
        )

    def save_copy(self) -> None:
        """Keep the weights with the run. Raises TrainingError where that cannot be done."""
        if self.copy and not self.copy.exists():
            save_tensors(self.copy, self.tensors, {"init": self.source})


def _class_weights(description: Json) -> list[str]:
    """Names of a model's weights whose shapes depend on the number of its classes."""
    classes = list(description["classes"])
    if not classes or SEPARATOR in description["model"]:
        return []  # the builder of a user is not called: what does not fit is left out by its shape
    with on_meta():
        state = build_model(description).state_dict()
        wider = build_model(description | {"classes": [*classes, f"{classes[-1]}'"]}).state_dict()
    return [name for name in state if name not in wider or wider[name].shape != state[name].shape]
