"""docs/compatibility.md says what the server does."""

from tools.compatibility import PATH, page


def test_the_tables_are_those_of_the_types() -> None:
    text = PATH.read_text()
    assert page(text) == text, "run python -m tools.compatibility"
    assert "`mirostat` (except `0`)" in text
