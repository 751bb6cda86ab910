"""What a trained model is worth, in figures: it draws nothing and writes nothing."""

from torchcaps.evaluation.accuracy import ClassAccuracy as ClassAccuracy
from torchcaps.evaluation.accuracy import Evaluation as Evaluation
from torchcaps.evaluation.accuracy import evaluate as evaluate
from torchcaps.evaluation.accuracy import score as score
from torchcaps.evaluation.calibration import Calibration as Calibration
from torchcaps.evaluation.calibration import Reliability as Reliability
from torchcaps.evaluation.calibration import calibration as calibration
from torchcaps.evaluation.calibration import reliability as reliability
from torchcaps.evaluation.examples import example_indices as example_indices
from torchcaps.evaluation.examples import worst_mistakes as worst_mistakes
from torchcaps.evaluation.inspect import Perturbation as Perturbation
from torchcaps.evaluation.inspect import Reconstructions as Reconstructions
from torchcaps.evaluation.inspect import perturb as perturb
from torchcaps.evaluation.inspect import reconstructions as reconstructions
from torchcaps.evaluation.predict import Prediction as Prediction
from torchcaps.evaluation.predict import predict as predict
