"""Learned and attribution-driven attention dropout for fine-tuning Hugging Face models.

The public names are listed in `__init__.pyi`, and each is imported on its first use: `import attendrop` loads neither
torch nor transformers.
"""

import lazy_loader

from .utils import moved as _moved  # noqa: F401, old paths of modules raise an ImportError that names the new one

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__:
        from .utils.requirements import unmet

        if problem := unmet():
            raise ImportError(problem)
    return _load(name)
