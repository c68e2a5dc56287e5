"""Rewrites of JSON schemas into the keywords that llguidance follows."""

from quire.text.json_schema.rewrite import rewritten
from quire.text.json_schema.scope import SchemaError

__all__ = ["SchemaError", "rewritten"]
