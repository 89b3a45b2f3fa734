"""Images, read with Pillow: .png, .jpg and others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import UserError
from ..catalogue import Task
from .media import Facts, Media, Unreadable


class Image(Media):
    """Images. All of them get the size that the image processor of the model gives them."""

    name, noun, example, unit = "image", "image", "photo.jpg", None
    processor_class, processor_called = "AutoImageProcessor", "image_processor"
    suffixes = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
    default_length = 1

    def model_class(self, task: Task) -> str:
        return "AutoModelForImageClassification"

    def check_length(self, model: Any, processor: Any, max_length: int | None, task: Task, notes: list[str]) -> int:
        return self.length_limit(task, processor, max_length, notes)

    def length_limit(self, task: Task, processor: Any, max_length: int | None, notes: list[str]) -> int:
        if max_length not in (None, self.default_length):
            raise UserError(f"max_length is {max_length}, and {task.name} has images, which are not cut; leave it out.")
        return self.default_length

    def facts(self, path: Path) -> Facts:
        _open(path)
        return Facts()

    def blank(self, processor: Any) -> Any:
        from PIL import Image as pillow

        return pillow.new("RGB", (64, 64))

    def read(self, path: str, processor: Any, max_length: int) -> Any:
        return _open(Path(path))

    def inputs(self, examples: Sequence[Any], processor: Any) -> dict[str, Any]:
        return dict(processor(list(examples), return_tensors="pt"))


def _open(path: Path) -> Any:
    """The whole image in RGB, turned as its camera says; of a moving image, the first picture."""
    from PIL import Image as pillow
    from PIL import ImageOps

    try:
        with pillow.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except pillow.DecompressionBombError:
        raise Unreadable("it has too many pixels") from None
    except pillow.UnidentifiedImageError:
        raise Unreadable("its content is no image") from None
    except (SyntaxError, ValueError, EOFError) as error:  # what Pillow raises for a damaged file
        raise Unreadable(str(error)) from None
