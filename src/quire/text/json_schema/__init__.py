"""Rewrite JSON schemas into the keywords that llguidance supports."""

from quire.text.json_schema.closing import closed, with_marks
from quire.text.json_schema.rewrite import rewritten
from quire.text.json_schema.scope import SchemaError
from quire.text.json_schema.skeleton import with_exponents

__all__ = ["SchemaError", "closed", "rewritten", "with_exponents", "with_marks"]
