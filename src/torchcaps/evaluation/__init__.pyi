from torchcaps.evaluation.accuracy.calibration import (
    Calibration as Calibration,
    HeldOutCalibration as HeldOutCalibration,
    Reliability as Reliability,
    calibrate as calibrate,
    calibration as calibration,
    conformal_sets as conformal_sets,
    doubt as doubt,
    reliability as reliability,
)
from torchcaps.evaluation.accuracy.classification import (
    ClassAccuracy as ClassAccuracy,
    Evaluation as Evaluation,
    example_indices as example_indices,
    score as score,
    worst_mistakes as worst_mistakes,
)
from torchcaps.evaluation.accuracy.few_labels import (
    labels_needed as labels_needed,
    log_area as log_area,
)
from torchcaps.evaluation.accuracy.multilabel import (
    MultiLabel as MultiLabel,
    auroc as auroc,
    label_hits as label_hits,
    score_multilabel as score_multilabel,
    top_labels as top_labels,
)
from torchcaps.evaluation.accuracy.values import (
    ValueFigures as ValueFigures,
    value_figures as value_figures,
)
from torchcaps.evaluation.comparison.compare import (
    Comparison as Comparison,
    RunsComparison as RunsComparison,
    compare_answers as compare_answers,
    compare_runs as compare_runs,
)
from torchcaps.evaluation.comparison.exact import (
    equivalence_test as equivalence_test,
    mcnemar as mcnemar,
    mcnemar_power as mcnemar_power,
    smallest_visible as smallest_visible,
)
from torchcaps.evaluation.comparison.uncertainty import (
    holm as holm,
)
from torchcaps.evaluation.decoding import (
    Perturbation as Perturbation,
    PoseAxes as PoseAxes,
    Reconstructions as Reconstructions,
    Segmentation as Segmentation,
    Segments as Segments,
    match_segments as match_segments,
    measure_drawings as measure_drawings,
    perturb as perturb,
    pose_axes as pose_axes,
    reconstructions as reconstructions,
    score_segmentation as score_segmentation,
    segment as segment,
)
from torchcaps.evaluation.robustness.affine import (
    AffineCurve as AffineCurve,
    AffineSweep as AffineSweep,
    Equivariance as Equivariance,
    affine_sweep as affine_sweep,
    equivariance as equivariance,
    transform_images as transform_images,
)
from torchcaps.evaluation.robustness.attacks import (
    AttackOutcome as AttackOutcome,
    AttackSweep as AttackSweep,
    MaskingCheck as MaskingCheck,
    MaskingReport as MaskingReport,
    attack_sweep as attack_sweep,
    bim as bim,
    carlini_wagner as carlini_wagner,
    fgsm as fgsm,
    full_margin_loss as full_margin_loss,
    masking_report as masking_report,
    pgd as pgd,
    sign_noise as sign_noise,
    vote_attack as vote_attack,
)
from torchcaps.evaluation.robustness.detection import (
    Detection as Detection,
    Rejection as Rejection,
    detect_adversarial as detect_adversarial,
    detection_threshold as detection_threshold,
    reconstruction_distances as reconstruction_distances,
    reject_by_length as reject_by_length,
)
from torchcaps.evaluation.robustness.viewpoints import (
    Matched as Matched,
    ViewpointComparison as ViewpointComparison,
    compare_viewpoints as compare_viewpoints,
)
from torchcaps.evaluation.routing.ablation import (
    IterationDynamics as IterationDynamics,
    RoutingAblation as RoutingAblation,
    iteration_dynamics as iteration_dynamics,
    routing_ablation as routing_ablation,
)
from torchcaps.evaluation.routing.coupling_maps import (
    CouplingMaps as CouplingMaps,
    coupling_maps as coupling_maps,
)
from torchcaps.evaluation.routing.couplings import (
    ActivationDecay as ActivationDecay,
    CapsuleActivity as CapsuleActivity,
    CouplingDynamics as CouplingDynamics,
    CouplingEntropy as CouplingEntropy,
    ParseTree as ParseTree,
    SignTest as SignTest,
    Starvation as Starvation,
    capsule_activity as capsule_activity,
    coupling_dynamics as coupling_dynamics,
    coupling_entropy as coupling_entropy,
    parse_tree as parse_tree,
    sign_test as sign_test,
    starvation as starvation,
)
from torchcaps.evaluation.routing.diagnosis import (
    Diagnosis as Diagnosis,
    LayerDiagnosis as LayerDiagnosis,
    diagnose as diagnose,
)
from torchcaps.evaluation.routing.layers import (
    VotePaths as VotePaths,
    route_images as route_images,
    vote_paths as vote_paths,
)
