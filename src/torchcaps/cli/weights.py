"""torchcaps import."""

from pathlib import Path
from typing import Annotated

import tyro

from torchcaps.cli.console import note


def import_weights(file: Annotated[Path, tyro.conf.Positional], /, output: Path | None = None) -> int:
    """Make a model file of weights that others have published: of CapsNet, and of Efficient-CapsNet.

    Example: torchcaps import trained_model.h5 && torchcaps predict trained_model.safetensors photo.png

    Args:
        file: Keras' .h5 (it needs h5py), or a state_dict that PyTorch has saved. No code in it is run.
        output: The model file; by default the file's name with the ending .safetensors.
    """
    from torchcaps.training import import_weights

    written, source = import_weights(file, output)
    note(f"the weights are of {source}")
    print(written)
    return 0
