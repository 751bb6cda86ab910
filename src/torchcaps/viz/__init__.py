"""Arrays in, matplotlib figures out.

No file is written, no model called, no global state of matplotlib touched. Every figure is a
`matplotlib.figure.Figure`: save it with `figure.savefig(path)`; a notebook shows it by itself.
Arrays may be anything that `numpy.asarray` takes, CPU tensors included. Images are
`[n, channels, height, width]` in [0, 1] (integers: 0-255), at most 1024 of them, labels `[n]`
indices of classes, and long names of classes are shortened in the middle. Arguments that do not
fit raise ArgumentError, a ValueError.
"""

# The first import names the package to install where matplotlib is missing.
from torchcaps.viz import canvas as _canvas
from torchcaps.viz.bench import (
    accuracy_against_time as accuracy_against_time,
    latency_curves as latency_curves,
    layer_bars as layer_bars,
    scaling_curves as scaling_curves,
    throughput_bars as throughput_bars,
)
from torchcaps.viz.calibration import calibration as calibration
from torchcaps.viz.classes import (
    activation_bars as activation_bars,
    confusion_matrix as confusion_matrix,
    per_class_bars as per_class_bars,
)
from torchcaps.viz.diagnosis import diagnosis as diagnosis
from torchcaps.viz.history import curves as curves, overlaid_curves as overlaid_curves
from torchcaps.viz.points import point_sets as point_sets
from torchcaps.viz.robustness import (
    accuracy_curves as accuracy_curves,
    affine_curves as affine_curves,
)
from torchcaps.viz.tiles import (
    coupling_map as coupling_map,
    overlaps as overlaps,
    perturbations as perturbations,
    reconstructions as reconstructions,
)
from torchcaps.viz.transformations import (
    generation_weights as generation_weights,
    predicted_transformations as predicted_transformations,
    transformed as transformed,
)
