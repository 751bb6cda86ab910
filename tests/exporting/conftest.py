from training.fixtures import bars as bars, run as run, trained as trained
