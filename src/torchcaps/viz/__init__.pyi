from torchcaps.viz.classes import (
    activation_bars as activation_bars,
    calibration as calibration,
    confusion_matrix as confusion_matrix,
    per_class_bars as per_class_bars,
)
from torchcaps.viz.lines import (
    affine_curves as affine_curves,
    curves as curves,
    overlaid_curves as overlaid_curves,
    point_sets as point_sets,
    predicted_transformations as predicted_transformations,
    ranked_accuracies as ranked_accuracies,
)
from torchcaps.viz.routing import (
    diagnosis as diagnosis,
    vote_film as vote_film,
    vote_paths as vote_paths,
)
from torchcaps.viz.tiles import (
    coupling_map as coupling_map,
    generation_weights as generation_weights,
    image_rows as image_rows,
    overlaps as overlaps,
    perturbations as perturbations,
    reconstructions as reconstructions,
)
