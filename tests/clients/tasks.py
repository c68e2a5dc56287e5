"""The words, schemas and functions that all scenarios share.

Its annotations are objects, not text: some packages evaluate them in a namespace of their own.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

SYSTEM = "You are a helpful animal."
QUESTION = "Where did the cat sit?"
CHAT: list[Any] = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": QUESTION},
]
PARTS: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city's name."},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
CLOSED_WEATHER = {**WEATHER, "required": ["city", "unit"], "additionalProperties": False}


class Cat(BaseModel):
    """A cat."""

    name: str = Field(description="What it is called.")
    age: int = Field(ge=0, le=40)
    mood: Literal["happy", "hungry"]


class Den(BaseModel):
    """Some cats, with nested types, a union and defaults."""

    cats: list[Cat]
    leader: Cat | None = None
    notes: dict[str, str] = {}
    rating: float | int = 1


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Tell the weather of a city.

    Args:
        city: the city's name.
        unit: of the temperature.
    """
    return f"12 degrees {unit} in {city}"


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b
