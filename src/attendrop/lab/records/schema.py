"""What all stored records share: the number of their schema, and one sentence about a file that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ...errors import UserError, on_one_line
from ...utils.dataclass_json import from_json, to_json
from ...utils.files import damaged, load_json

SCHEMA = 2


class LaterSchemaError(ValueError):
    """A newer version of attendrop wrote the content."""


class Stored:
    """A dataclass that is stored as JSON, with the number of its schema."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON has, with the number of the schema."""
        return {"schema": SCHEMA, **to_json(self, keeps_nan=True)}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` returned, or what an earlier schema has.

        Args:
            content: The content of a file, as JSON gave it.

        Raises:
            ValueError: The message names the first part that is missing or wrong.
        """
        if not isinstance(content, Mapping):
            raise ValueError(f"it holds a {type(content).__name__}")
        schema = content.get("schema", 1)
        if schema == 1:
            content = cls._from_schema_1(content)
        elif schema != SCHEMA:
            is_later = isinstance(schema, int) and schema > SCHEMA
            error = LaterSchemaError if is_later else ValueError
            raise error(f"its schema is {schema!r}, and this version of attendrop reads schemas up to {SCHEMA}")
        stored: Self = from_json(cls, content, "it")
        return stored

    @classmethod
    def _from_schema_1(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        return content

    @classmethod
    def read(cls, path: str | Path, remedy: str) -> Self:
        """Read a file.

        Args:
            path: The file.
            remedy: What the user can do about a damaged file.

        Raises:
            UserError: The file cannot be read, or something in it is missing or wrong.
        """
        try:
            return cls.from_json(load_json(path))
        except LaterSchemaError as error:
            raise UserError(f"{str(path)!r} cannot be read: {error}; install the version that wrote it.") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise damaged(path, on_one_line(error) if type(error) is ValueError else error, remedy) from None
