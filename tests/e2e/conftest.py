from training.fixtures import bars as bars
