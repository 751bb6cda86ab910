"""Evaluation of trained models in figures, without plots and files.

Unless said otherwise, `images` are `[n, channels, height, width]` in [0, 1], n at least 1, and
`labels` `[n]` int64 class indices. A `model` maps `batch_size` images at a time to
`[batch, classes]` activations in [0, 1]; it runs in evaluation mode, and has its own mode back
afterwards. Arguments that do not fit, or are out of range, raise ArgumentError, a ValueError.
"""

from torchcaps.evaluation.accuracy.calibration import (
    Calibration,
    Reliability,
    calibration,
    reliability,
)
from torchcaps.evaluation.accuracy.classification import (
    ClassAccuracy,
    Evaluation,
    example_indices,
    score,
    worst_mistakes,
)
from torchcaps.evaluation.accuracy.few_labels import labels_needed, log_area
from torchcaps.evaluation.accuracy.multilabel import (
    MultiLabel,
    label_hits,
    score_multilabel,
    top_labels,
)
from torchcaps.evaluation.accuracy.temperature import HeldOutCalibration, calibrate
from torchcaps.evaluation.comparison.compare import (
    Comparison,
    RunsComparison,
    compare_answers,
    compare_runs,
)
from torchcaps.evaluation.comparison.exact import (
    equivalence_test,
    mcnemar,
    mcnemar_power,
    smallest_visible,
)
from torchcaps.evaluation.comparison.uncertainty import holm, seeds_needed
from torchcaps.evaluation.decoding.reconstruction import (
    Perturbation,
    Reconstructions,
    perturb,
    reconstructions,
)
from torchcaps.evaluation.decoding.segmentation import (
    Segmentation,
    Segments,
    match_segments,
    score_segmentation,
    segment,
)
from torchcaps.evaluation.robustness.affine import (
    AffineCurve,
    AffineSweep,
    affine_sweep,
    transform_images,
)
from torchcaps.evaluation.robustness.attack_sweep import (
    AttackOutcome,
    AttackSweep,
    MaskingCheck,
    MaskingReport,
    attack_outcome,
    attack_sweep,
    masking_report,
)
from torchcaps.evaluation.robustness.attacks import (
    bim,
    carlini_wagner,
    fgsm,
    full_margin_loss,
    pgd,
    sign_noise,
    vote_attack,
)
from torchcaps.evaluation.robustness.detection import (
    Detection,
    Rejection,
    auroc,
    detect_adversarial,
    detection_threshold,
    reconstruction_distances,
    reject_by_length,
)
from torchcaps.evaluation.robustness.equivariance import Equivariance, equivariance
from torchcaps.evaluation.robustness.viewpoints import (
    Matched,
    ViewpointComparison,
    compare_viewpoints,
)
from torchcaps.evaluation.routing.ablation import (
    IterationDynamics,
    RoutingAblation,
    iteration_dynamics,
    routing_ablation,
)
from torchcaps.evaluation.routing.coupling_maps import CouplingMaps, coupling_maps
from torchcaps.evaluation.routing.couplings import (
    CouplingDynamics,
    CouplingEntropy,
    ParseTree,
    coupling_dynamics,
    coupling_entropy,
    parse_tree,
)
from torchcaps.evaluation.routing.diagnosis import Diagnosis, LayerDiagnosis, diagnose
from torchcaps.evaluation.routing.health import (
    ActivationDecay,
    CapsuleActivity,
    SignTest,
    Starvation,
    activation_decay,
    capsule_activity,
    sign_test,
    starvation,
)
from torchcaps.evaluation.routing.layers import route_images

__all__ = [
    "ActivationDecay",
    "AffineCurve",
    "AffineSweep",
    "AttackOutcome",
    "AttackSweep",
    "Calibration",
    "CapsuleActivity",
    "ClassAccuracy",
    "Comparison",
    "CouplingDynamics",
    "CouplingEntropy",
    "CouplingMaps",
    "Detection",
    "Diagnosis",
    "Equivariance",
    "Evaluation",
    "HeldOutCalibration",
    "IterationDynamics",
    "LayerDiagnosis",
    "MaskingCheck",
    "MaskingReport",
    "Matched",
    "MultiLabel",
    "ParseTree",
    "Perturbation",
    "Reconstructions",
    "Rejection",
    "Reliability",
    "RoutingAblation",
    "RunsComparison",
    "Segmentation",
    "Segments",
    "SignTest",
    "Starvation",
    "ViewpointComparison",
    "activation_decay",
    "affine_sweep",
    "attack_outcome",
    "attack_sweep",
    "auroc",
    "bim",
    "calibrate",
    "calibration",
    "capsule_activity",
    "carlini_wagner",
    "compare_answers",
    "compare_runs",
    "compare_viewpoints",
    "coupling_dynamics",
    "coupling_entropy",
    "coupling_maps",
    "detect_adversarial",
    "detection_threshold",
    "diagnose",
    "equivalence_test",
    "equivariance",
    "example_indices",
    "fgsm",
    "full_margin_loss",
    "holm",
    "iteration_dynamics",
    "label_hits",
    "labels_needed",
    "log_area",
    "masking_report",
    "match_segments",
    "mcnemar",
    "mcnemar_power",
    "parse_tree",
    "perturb",
    "pgd",
    "reconstruction_distances",
    "reconstructions",
    "reject_by_length",
    "reliability",
    "route_images",
    "routing_ablation",
    "score",
    "score_multilabel",
    "score_segmentation",
    "seeds_needed",
    "segment",
    "sign_noise",
    "sign_test",
    "smallest_visible",
    "starvation",
    "top_labels",
    "transform_images",
    "vote_attack",
    "worst_mistakes",
]
