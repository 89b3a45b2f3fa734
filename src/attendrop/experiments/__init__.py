"""Whole fine-tuning runs from a model, data and methods to a folder with the results."""

from .run import Listener, Result, fine_tune, train
from .settings import RunConfig, make_config, read_yaml

__all__ = ["Listener", "Result", "RunConfig", "fine_tune", "make_config", "read_yaml", "train"]
