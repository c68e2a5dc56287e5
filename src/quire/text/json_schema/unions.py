"""Write `oneOf`, `not` and conditions as unions.

llguidance supports only `anyOf`. A branch of `oneOf` becomes the branch without the values of
branches that it may overlap. A condition becomes two alternatives: `if` with `then`, or not `if`
with `else`. Complements are lower bounds, and disjointness is proven on upper bounds. So a union
never contains a value that the keyword forbids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from quire.system.records import dataclass
from quire.text.json_schema.complement import Complement, all_of, any_of, complement
from quire.text.json_schema.scope import (
    ANNOTATIONS,
    KEYWORDS,
    MAX_ALTERNATIVES,
    Schema,
    SchemaError,
    Scope,
)
from quire.text.json_schema.shapes import Shapes, meet, upper

CONDITIONS = frozenset(["if", "then", "else"])
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
_OF_OBJECTS = frozenset(
    [
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties", "propertyNames", *DEPENDENCIES),
    ]
)
"""Keywords under which all other values are valid."""


@dataclass
class Alternative:
    """A conjunction of schemas, and the shapes of its values."""

    shapes: Shapes
    parts: list[Schema]

    def with_part(self, part: Schema, scope: Scope) -> Alternative | None:
        """Return the conjunction with one more schema; None if no value is left."""
        shapes = meet(self.shapes, upper(part, scope), scope)
        return Alternative(shapes, [*self.parts, part]) if shapes else None


def opposite(schema: Schema, within: Shapes, scope: Scope) -> Complement:
    """Return the alternatives of the complement that have values within the shapes."""
    found = complement(schema, scope)
    met = [each for each in found.schemas if meet(within, upper(each, scope), scope)]
    return Complement(met, found.exact)


def without(schema: Schema, within: Shapes, scope: Scope) -> Schema:
    """Return the values that `not` allows.

    Raises:
        SchemaError: the complement cannot be written.
    """
    found = opposite(schema, within, scope)
    if not found.schemas and not found.exact:
        raise SchemaError("not: the opposite of its schema cannot be followed")
    return any_of(found.schemas) if found.schemas else False


def one_of(branches: list[Schema], within: Shapes, scope: Scope) -> list[Schema]:
    """Return alternatives whose values are valid under exactly one branch.

    Raises:
        SchemaError: branches overlap, and no value is provably in exactly one.
    """
    bounds = [meet(within, upper(each, scope), scope) for each in branches]
    found: list[Schema] = []
    lost = False
    for index, branch in enumerate(branches):
        alternative: Alternative | None = Alternative(bounds[index], [branch])
        if not bounds[index]:
            continue
        width = 1
        for other, bound in enumerate(bounds):
            if other == index or not meet(bounds[index], bound, scope):
                continue
            rest = opposite(branches[other], bounds[index], scope)
            lost = lost or not rest.exact
            width *= len(rest.schemas)
            if width > MAX_ALTERNATIVES:
                raise SchemaError("oneOf: its branches overlap in too many ways")
            if alternative is not None:
                alternative = (
                    alternative.with_part(any_of(rest.schemas), scope) if rest.schemas else None
                )
        if alternative is not None:
            found.append(all_of(alternative.parts))
    if not found and lost:
        raise SchemaError("oneOf: its branches overlap, and no value is known to be in one alone")
    return found


def is_condition(schema: Any) -> bool:
    """Return whether a schema has only `if`, `then` and `else`."""
    return (
        isinstance(schema, dict)
        and "if" in schema
        and not (schema.keys() & KEYWORDS - CONDITIONS - ANNOTATIONS)
    )


def conditions_of(schema: Mapping[str, Any]) -> list[tuple[Schema, Schema, Schema]]:
    """Return the schema's conditions and dependencies as (if, then, else)."""
    found: list[tuple[Schema, Schema, Schema]] = []
    if "if" in schema:
        found.append((schema["if"], schema.get("then", True), schema.get("else", True)))
    for keyword in DEPENDENCIES:
        for name, wanted in schema.get(keyword, {}).items():
            then: Schema = {"required": wanted} if isinstance(wanted, list) else wanted
            if then not in ({"required": []}, True, {}):
                found.append((_having(name, then), then, True))
    return found


def _having(name: str, then: Schema) -> Schema:
    """Return a schema of objects with a property, and of other values if `then` accepts them."""
    is_about_objects = isinstance(then, dict) and not then.keys() - _OF_OBJECTS - ANNOTATIONS
    return {"required": [name]} if is_about_objects else {"type": "object", "required": [name]}


def conditional(
    conditions: list[tuple[Schema, Schema, Schema]], within: Shapes, scope: Scope
) -> list[Schema]:
    """Return alternatives under which all conditions hold.

    Conditions are added one by one, and combinations without values are dropped at once. So many
    conditions on one property's value still give one alternative each.

    Raises:
        SchemaError: there are too many alternatives, or a complement cannot be written.
    """
    conditions = [each for each in conditions if each[1] is not True or each[2] is not True]
    alternatives = _seeds(conditions, within, scope)
    lost = False
    for condition, then, unless in conditions:
        grown: list[Alternative] = []
        for each in alternatives:
            rest = opposite(condition, each.shapes, scope)
            lost = lost or not rest.exact
            met = each.with_part(condition, scope)
            certain = met is not None and rest.exact and not rest.schemas
            first = each if certain else met
            if first is not None and then is not True:
                first = first.with_part(then, scope)
            second = each if met is None else None
            if met is not None and rest.schemas:
                second = each.with_part(any_of(rest.schemas), scope)
            if second is not None and unless is not True:
                second = second.with_part(unless, scope)
            grown += [one for one in (first, second) if one is not None]
            if len(grown) > MAX_ALTERNATIVES:
                raise SchemaError("if or dependencies: they combine too many alternatives")
        alternatives = grown
    if not alternatives and lost:
        raise SchemaError("if or dependencies: the opposite of a condition cannot be followed")
    return [all_of(each.parts) if each.parts else True for each in alternatives]


def _seeds(
    conditions: list[tuple[Schema, Schema, Schema]], within: Shapes, scope: Scope
) -> list[Alternative]:
    """Split on a property that several conditions test: present or absent.

    Without the property all these conditions hold; with it, at most a few do.
    """
    tested = Counter(
        name
        for condition, _, _ in conditions
        if isinstance(condition, dict)
        for name in condition.get("properties", {})
        if name not in condition.get("required", [])
    )
    seeds = [Alternative(within, [])]
    for name, count in tested.most_common(2):
        if count < 2:
            break
        absent: Schema = {"properties": {name: False}}
        present: Schema = {"required": [name]}
        split = [each.with_part(part, scope) for each in seeds for part in (absent, present)]
        seeds = [each for each in split if each is not None]
    return seeds
