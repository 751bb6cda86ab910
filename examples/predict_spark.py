"""Classify many pictures with Spark, which begins again what a lost worker had begun:

    spark-submit --master "local[2,4]" examples/predict_spark.py RUN FOLDER predictions.parquet

Every worker has to see the run and the pictures, and has torchcaps installed.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

import torchcaps as tc

COLUMNS = {"path": "string", "label": "string", "activation": "double"}
FILES_OF_A_TASK = 1000  # are predicted again when its worker is lost
run, folder, output = sys.argv[1:]
predictor = tc.Predictor(Path(run).resolve())


def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The predictions of pictures, a batch at a time."""
    for batch in batches:
        yield pd.DataFrame(predictor(batch["path"]))[list(COLUMNS)]


spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", predictor.batch_size)
files = [[str(file)] for file in sorted(Path(folder).resolve().rglob("*.png"))]
tasks = spark.createDataFrame(files, "path string").repartition(len(files) // FILES_OF_A_TASK + 1)
schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
tasks.mapInPandas(predict, schema).write.parquet(output)
