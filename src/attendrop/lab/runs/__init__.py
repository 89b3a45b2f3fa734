"""Whole fine-tuning runs from a model, data and methods to a folder with the results."""

from .fine_tuning import fine_tune
from .result import Result
from .run import Listener, train
from .run_yaml import read_yaml
from .settings import RunConfig, make_config

__all__ = ["Listener", "Result", "RunConfig", "fine_tune", "make_config", "read_yaml", "train"]
