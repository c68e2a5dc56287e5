"""Prepare JSON schemas for llguidance, which reads most keywords itself."""

from __future__ import annotations

from typing import Any

from quire.text.json_schema.closing import closed
from quire.text.json_schema.keywords import SchemaError, check_schema, simplified

__all__ = ["SchemaError", "check_schema", "prepared"]


def prepared(schema: dict[str, Any], *, close: bool) -> Any:
    """Return a schema that llguidance follows exactly, or refuses by its keyword.

    Args:
        close: objects that name their properties have no others.

    Raises:
        SchemaError: llguidance would follow it incorrectly or without end.
    """
    check_schema(schema)
    if close:
        schema = closed(schema)
    return simplified(schema, schema)
