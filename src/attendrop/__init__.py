"""Learned and attribution-driven attention dropout for fine-tuning Hugging Face models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .attribution import IntegrationRule, attribute
    from .engine import Engine
    from .methods import METHODS, load_regularizers, parse_method
    from .methods.addrop import ADDrop
    from .methods.attendout import AttendOut
    from .methods.attention_layerdrop import AttentionLayerDrop
    from .methods.scheduled_dropout import ScheduledDropout, fit_schedule
    from .plan import Plan
    from .regularizer import Regularizer, Step, Surroundings
    from .schedule import Progress, Schedule
    from .seams import Seams, bind
    from .trainer import RegularizedTrainer, RegularizerMixin, regularized

# Where each public name lives. Imported on first use: `import attendrop` must not load torch and transformers.
_HOMES = {
    "ADDrop": "methods.addrop",
    "AttendOut": "methods.attendout",
    "AttentionLayerDrop": "methods.attention_layerdrop",
    "Engine": "engine",
    "IntegrationRule": "attribution",
    "METHODS": "methods",
    "Plan": "plan",
    "Progress": "schedule",
    "RegularizedTrainer": "trainer",
    "Regularizer": "regularizer",
    "RegularizerMixin": "trainer",
    "Schedule": "schedule",
    "ScheduledDropout": "methods.scheduled_dropout",
    "Seams": "seams",
    "Step": "regularizer",
    "Surroundings": "regularizer",
    "attribute": "attribution",
    "bind": "seams",
    "fit_schedule": "methods.scheduled_dropout",
    "load_regularizers": "methods",
    "parse_method": "methods",
    "regularized": "trainer",
}

__all__ = [
    "METHODS",
    "ADDrop",
    "AttendOut",
    "AttentionLayerDrop",
    "Engine",
    "IntegrationRule",
    "Plan",
    "Progress",
    "RegularizedTrainer",
    "Regularizer",
    "RegularizerMixin",
    "Schedule",
    "ScheduledDropout",
    "Seams",
    "Step",
    "Surroundings",
    "attribute",
    "bind",
    "fit_schedule",
    "load_regularizers",
    "parse_method",
    "regularized",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attendrop' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attendrop.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
