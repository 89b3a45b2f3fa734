"""What is stored of runs and studies, as dataclasses: `RunRecord`, `StudyConfiguration`, `TuningResult` and others.

record.py      the record of a run, which the output folder of a run and the folder of a study share
evaluation.py  the evaluation of a model on a part of the data
compression.py  how a model was compressed
study.py       study.json
tuning.py      tuning.json
progress.py    progress.json
schema.py      what they share: they are written with the number of their schema, and read or refused by it
older.py       converts records of earlier schemas
"""

from .compression import CompressionRecord, CompressionStage
from .evaluation import (
    BaselineScores,
    Calibration,
    ClassScores,
    IntervalScore,
    Probabilities,
    Reliability,
    SplitEvaluation,
)
from .progress import Progress, RunningRun
from .record import (
    CHECKED,
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
from .schema import SCHEMA
from .study import StudyConfiguration
from .tuning import TUNING_FILE, ChosenSetting, DevelopmentResult, MethodCurve, TrialResult, TuningMap, TuningResult

__all__ = [
    "CHECKED",
    "SCHEMA",
    "STATUSES",
    "TUNING_FILE",
    "Averaged",
    "BaselineScores",
    "Calibration",
    "ChosenSetting",
    "ClassPredictions",
    "ClassScores",
    "CompressionRecord",
    "CompressionStage",
    "Cost",
    "DevelopmentResult",
    "FolderRecord",
    "IntervalScore",
    "Kept",
    "MethodCurve",
    "ModelFacts",
    "Probabilities",
    "Progress",
    "Reliability",
    "RunError",
    "RunRecord",
    "RunningRun",
    "Scores",
    "SplitEvaluation",
    "StudyConfiguration",
    "StudyRecord",
    "TrialResult",
    "TuningMap",
    "TuningResult",
    "flat_scores",
]
