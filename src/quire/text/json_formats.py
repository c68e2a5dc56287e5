"""`format` in JSON schemas: some are JSON Schema's own, and others only say something to people."""

from __future__ import annotations

from typing import Any

DEFINED = frozenset(
    ["date", "date-time", "duration", "time", "email", "idn-email", "hostname", "idn-hostname",
     "ipv4", "ipv6", "iri", "iri-reference", "uri", "uri-reference", "uri-template", "uuid",
     "json-pointer", "relative-json-pointer", "regex"]
)  # fmt: skip
"""By the specification; by the same, any other is an annotation: `password`, `int32`, `path` …"""

OF_SCHEMAS = ("properties", "patternProperties", "definitions", "$defs")
"""Keywords that hold schemas by names."""
SCHEMAS = ("items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf",
           "oneOf")  # fmt: skip
"""Keywords that hold a schema, or several."""


def without_annotations(schema: Any) -> Any:
    """Return the schema without formats that are not `DEFINED`; a property may have such a name."""
    if isinstance(schema, list):
        return [without_annotations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "format" and isinstance(value, str) and value not in DEFINED:
            continue
        if keyword in OF_SCHEMAS and isinstance(value, dict):
            found[keyword] = {name: without_annotations(each) for name, each in value.items()}
        else:
            found[keyword] = without_annotations(value) if keyword in SCHEMAS else value
    return found
