"""From the logits of a model to its scores, their intervals, calibration, tables and errors.

    Evaluator           evaluator.py     runs the Trainer's evaluation of each split, and keeps the predictions
    Answers             tasks/kinds      predictions and gold answers of each kind of task
    evaluate            scores.py        scores with intervals, baseline, classes, calibration, warnings
    write_evaluation    tables.py        tables and pictures; predictions and errors as CSV, TSV, JSON lines, Parquet

`Scorer` (scorer.py) and `Outputs` (outputs.py) are for studies: scores of each epoch, and predictions to average.
"""
