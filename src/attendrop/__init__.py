"""Learned and attribution-driven attention dropout for fine-tuning Hugging Face models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .attribution import IntegrationRule, attribute
    from .engine import Engine
    from .experiments import fine_tune
    from .methods import METHODS, load_regularizers, parse_method
    from .methods.addrop import ADDrop
    from .methods.attendout import AttendOut
    from .methods.attention_dropout import AttentionDropout
    from .methods.attention_layerdrop import AttentionLayerDrop
    from .methods.child_tuning import ChildTuning
    from .methods.concrete_dropout import ConcreteDropout
    from .methods.dropconnect import DropConnect
    from .methods.drophead import DropHead
    from .methods.headmask import HeadMask
    from .methods.hiddencut import HiddenCut
    from .methods.layerdrop import LayerDrop
    from .methods.mixout import Mixout
    from .methods.noisytune import NoisyTune
    from .methods.r3f import R3F
    from .methods.rdrop import RDrop
    from .methods.scal import SCAL
    from .methods.scheduled_dropout import ScheduledDropout, fit_schedule
    from .methods.scores_dropout import ScoresDropout
    from .methods.structure_mask import StructureMask, collate_structure
    from .methods.supertickets import SuperTickets, find_supertickets
    from .methods.unidrop import UniDrop
    from .plan import Plan
    from .regularizer import Regularizer, Step, Surroundings
    from .schedule import Progress, Schedule
    from .seams import Seams, bind
    from .tickets import Tickets
    from .trainer import RegularizedTrainer, RegularizerMixin, regularized

# Where each public name lives. Imported on first use: `import attendrop` must not load torch and transformers.
_HOMES = {
    "ADDrop": "methods.addrop",
    "AttendOut": "methods.attendout",
    "AttentionDropout": "methods.attention_dropout",
    "AttentionLayerDrop": "methods.attention_layerdrop",
    "ChildTuning": "methods.child_tuning",
    "ConcreteDropout": "methods.concrete_dropout",
    "DropConnect": "methods.dropconnect",
    "DropHead": "methods.drophead",
    "Engine": "engine",
    "HeadMask": "methods.headmask",
    "HiddenCut": "methods.hiddencut",
    "IntegrationRule": "attribution",
    "LayerDrop": "methods.layerdrop",
    "METHODS": "methods",
    "Mixout": "methods.mixout",
    "NoisyTune": "methods.noisytune",
    "Plan": "plan",
    "Progress": "schedule",
    "R3F": "methods.r3f",
    "RDrop": "methods.rdrop",
    "RegularizedTrainer": "trainer",
    "Regularizer": "regularizer",
    "RegularizerMixin": "trainer",
    "SCAL": "methods.scal",
    "Schedule": "schedule",
    "ScheduledDropout": "methods.scheduled_dropout",
    "ScoresDropout": "methods.scores_dropout",
    "Seams": "seams",
    "Step": "regularizer",
    "StructureMask": "methods.structure_mask",
    "SuperTickets": "methods.supertickets",
    "Surroundings": "regularizer",
    "Tickets": "tickets",
    "UniDrop": "methods.unidrop",
    "attribute": "attribution",
    "bind": "seams",
    "collate_structure": "methods.structure_mask",
    "find_supertickets": "methods.supertickets",
    "fine_tune": "experiments",
    "fit_schedule": "methods.scheduled_dropout",
    "load_regularizers": "methods",
    "parse_method": "methods",
    "regularized": "trainer",
}

__all__ = [
    "METHODS",
    "R3F",
    "SCAL",
    "ADDrop",
    "AttendOut",
    "AttentionDropout",
    "AttentionLayerDrop",
    "ChildTuning",
    "ConcreteDropout",
    "DropConnect",
    "DropHead",
    "Engine",
    "HeadMask",
    "HiddenCut",
    "IntegrationRule",
    "LayerDrop",
    "Mixout",
    "NoisyTune",
    "Plan",
    "Progress",
    "RDrop",
    "RegularizedTrainer",
    "Regularizer",
    "RegularizerMixin",
    "Schedule",
    "ScheduledDropout",
    "ScoresDropout",
    "Seams",
    "Step",
    "StructureMask",
    "SuperTickets",
    "Surroundings",
    "Tickets",
    "UniDrop",
    "attribute",
    "bind",
    "collate_structure",
    "find_supertickets",
    "fine_tune",
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
