"""The stored record of a run: `RunRecord`, which the output folder of a run and the folder of a study share.

record.py      the fields of a record
evaluation.py  the evaluation of a model on a part of the data
older.py       converts records of earlier schemas
"""

from .evaluation import (
    BaselineScores,
    Calibration,
    ClassScores,
    IntervalScore,
    Probabilities,
    Reliability,
    SplitEvaluation,
)
from .record import (
    CHECKED,
    SCHEMA,
    STATUSES,
    Averaged,
    ClassPredictions,
    Cost,
    FolderRecord,
    Kept,
    ModelFacts,
    RunError,
    RunRecord,
    Scores,
    StudyRecord,
    flat_scores,
)

__all__ = [
    "CHECKED",
    "SCHEMA",
    "STATUSES",
    "Averaged",
    "BaselineScores",
    "Calibration",
    "ClassPredictions",
    "ClassScores",
    "Cost",
    "FolderRecord",
    "IntervalScore",
    "Kept",
    "ModelFacts",
    "Probabilities",
    "Reliability",
    "RunError",
    "RunRecord",
    "Scores",
    "SplitEvaluation",
    "StudyRecord",
    "flat_scores",
]
