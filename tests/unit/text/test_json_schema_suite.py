"""The suite's numbers, which docs/structured-output.md tells, and every disagreement by name."""

from __future__ import annotations

from pathlib import Path

from tests.unit.text.json_schema_suite import run_suite

ECMA = "optional/ecmascript-regex.json: ECMA 262"
NARROW = {
    # Draft 7 has keywords beside $ref mean nothing; they are held to here, as in later drafts.
    "ref.json: ref overrides any sibling keywords: ref valid, maxItems ignored",
    "allOf.json: allOf: allOf",
    "const.json: const with object: same object with different property order is valid",
    # An instance is written as its properties are listed; here, they are not.
    "dependencies.json: dependencies: with dependency",
    "dependencies.json: multiple dependencies: with dependencies",
    # Numbers that are not integers have no schema, so that "not an integer" leaves them out.
    "oneOf.json: oneOf: second oneOf valid",
    f"{ECMA} \\s matches whitespace: zero-width whitespace matches",
}
UNSOUND = {f"{ECMA} \\S matches everything but whitespace: zero-width whitespace does not match"}
INEXACT_FORMATS = (
    "date", "date-time", "time", "hostname", "ipv6", "idn-email", "idn-hostname", "iri",
    "iri-reference", "uri-template", "ecmascript-regex",
)  # fmt: skip


def by_format(names: list[str]) -> set[str]:
    """Without those of formats that are matched nearly."""
    known = tuple(f"optional/format/{name}.json" for name in INEXACT_FORMATS)
    return {name for name in names if not name.startswith(known)}


def test_every_schema_is_refused_or_agrees(shared_dir: Path) -> None:
    folder = shared_dir / "json-schema" / "draft7"
    result = run_suite(sorted(folder.rglob("*.json")), folder)

    assert by_format(result.unsound) == UNSOUND
    assert by_format(result.narrow) == NARROW
    counts = (result.schemas, result.refused.total(), result.agreed)
    assert counts == (321, 50, 1461)
    assert (len(result.unsound), len(result.narrow)) == (40, 61)
    for reason in result.refused:
        assert "cannot be served: " in reason


def test_nothing_invalid_is_accepted_of_closed_objects(shared_dir: Path) -> None:
    folder = shared_dir / "json-schema" / "draft7"
    result = run_suite(sorted(folder.rglob("*.json")), folder, close=True)
    assert by_format(result.unsound) == UNSOUND
    counts = (result.schemas, result.refused.total(), len(result.unsound))
    assert counts == (321, 50, 40)
