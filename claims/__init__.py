"""Published claims, registered before they are tested, and the verdicts on them.

    python -m claims

Imported as a plug-in, it makes the names of its protocols, data sets, measures and network known:

    torchcaps evaluate RUN --import claims
"""

import tomllib

from claims import (
    constellations as constellations,
    recurrent_cnn as recurrent_cnn,
    slots as slots,
    summed_drawings as summed_drawings,
)
from claims.protocol import FOLDER, list_claims
from torchcaps.registry import import_submodules
from torchcaps.training import register_recipe

import_submodules("claims.sets")
import_submodules("claims.measures")
for _name in list_claims():
    register_recipe(_name, tomllib.loads((FOLDER / f"{_name}.toml").read_text("utf-8")))
