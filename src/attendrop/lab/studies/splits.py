"""The training and evaluation examples of the runs of a study."""

from __future__ import annotations

import dataclasses

from .. import tasks
from ..runs.data import load_data
from ..runs.settings import RunConfig
from .spec import RunSpec

DATA_SEED = 42  # of splits and samples that all seeds share
FOLD_SHARE, SELECTION_SHARE = 0.2, 0.1  # of the training data, split off for `fold` and for `keep="split"`
SELECTION = "selection"  # the part of the training data on which `keep="split"` chooses the epoch


def load_split_data(spec: RunSpec, config: RunConfig) -> tasks.Data:
    """Load the data of a run, with the parts that it splits off.

    Args:
        spec: The run.
        config: Its configuration.
    """
    return split_for(spec, load_data(config, DATA_SEED, sample_seed(spec), spec.score_on == "rest"))


def sample_seed(spec: RunSpec) -> int:
    """Return the seed that samples the training examples of a run on a subset."""
    return spec.seed if spec.resample else DATA_SEED


def split_for(spec: RunSpec, data: tasks.Data) -> tasks.Data:
    """Split off what a run needs of the training data: the part that scores a fold, the part that chooses an epoch."""
    if spec.fold is not None:
        bare = dataclasses.replace(data, validation=None, test=None, others={})
        data = tasks.split_validation(bare, FOLD_SHARE, DATA_SEED + 1 + spec.fold)
    if spec.keep == "split":
        parts = tasks.split_validation(dataclasses.replace(data, validation=None), SELECTION_SHARE, DATA_SEED)
        data = dataclasses.replace(data, train=parts.train, others={**data.others, SELECTION: parts.validation})
    return data
