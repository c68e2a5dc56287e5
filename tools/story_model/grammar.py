"""Draws a story: a cast, a place, a thing, a plot, and the words to tell it with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tools.story_model import (
    plots_a,
    plots_b,
    plots_c,
    plots_d,
    plots_e,
    plots_f,
    plots_g,
    plots_h,
    words,
)
from tools.story_model.plot import Plot
from tools.story_model.rules import RULES
from tools.story_model.template import Writer

TINY: tuple[Plot, ...] = plots_h.PLOTS
PRONOUNS: tuple[Plot, ...] = (*TINY, *plots_h.PRONOUNS, *plots_h.PRONOUNS)
PLOTS: tuple[Plot, ...] = tuple(
    plot
    for part in (plots_a, plots_b, plots_c, plots_d, plots_e, plots_f, plots_g)
    for plot in part.PLOTS
)

# One combination of (plot, hero, thing or helper) in so many is never trained on.
HELD_OUT_ONE_IN = 40

_FEMALE = frozenset(
    words.listed("girl, princess, queen, grandmother, witch, mermaid, fairy, hen, cow, duck, goose")
)
_MALE = frozenset(
    words.listed("boy, prince, king, grandfather, wizard, rooster, milkman, postman, fisherman")
)
_MODIFIERS = ("baby", "flying", "talking", "wild", "magic", "purple", "green", "singing", "space")
_PLACE_LOOKS = ("quiet", "small", "pretty", "faraway", "lovely", "old", "sleepy", "windy", "little")


@dataclass(frozen=True)
class Mix:
    """What the stories of one part of the training are like."""

    tiny: float = 0.04
    """How often a story has only two or three sentences."""
    gendered: bool = False
    """Whether the name tells if its owner is a he or a she, so that pronouns can be learned."""
    pronouns: bool = False
    """Whether the tiny stories include those in which pronouns are dense."""


USUAL = Mix()


@dataclass(frozen=True)
class Being:
    """Someone in a story."""

    kind: str
    name: str
    female: bool
    trait: str

    @property
    def described(self) -> str:
        """Such as "a(n) shy fox"."""
        return f"a(n) {self.trait} {self.kind}" if self.trait else f"a(n) {self.kind}"


@dataclass(frozen=True)
class Place:
    first: str
    """As it is first mentioned: "in a quiet village"."""
    again: str
    """As it is mentioned later: "in the village"."""


@dataclass(frozen=True)
class Thing:
    base: str
    full: str


@dataclass(frozen=True)
class Story:
    """A finished story and what it was made of."""

    plot: Plot
    hero: Being
    helper: Being
    thing: Thing
    place: Place
    detail: float
    moral: str
    text: str
    writer: Writer

    @property
    def held_out(self) -> bool:
        return is_held_out(self.plot, self.hero, self.helper, self.thing)


def is_held_out(plot: Plot, hero: Being, helper: Being, thing: Thing) -> bool:
    third = thing.base if plot.uses_object else helper.kind
    key = f"{plot.key}/{hero.kind}/{third}".encode()
    return zlib.crc32(key) % HELD_OUT_ONE_IN == 0


def invented_word(rng: Random) -> str:
    """A word nobody has seen, so that the model learns to copy rather than to recall."""
    return "".join(rng.choice(words.SYLLABLES) for _ in range(rng.choice((2, 2, 3))))


def pick_kind(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.06:
        return invented_word(rng)
    if draw < 0.10:
        return rng.choice(("girl", "boy"))
    if draw < 0.30:
        return rng.choice(words.PEOPLE)
    if draw < 0.50:
        return rng.choice(words.FANTASY)
    kind = rng.choice(words.ANIMALS)
    return f"{rng.choice(_MODIFIERS)} {kind}" if rng.random() < 0.04 else kind


def sounds_female(name: str) -> bool:
    if name in words.PET_NAMES:
        return name in words.PET_GIRLS
    return name in words.GIRLS or (name not in words.BOYS and name[-1] in "aei")


def pick_being(rng: Random, mix: Mix, *, female: bool, avoid: Sequence[str] = ()) -> Being:
    """Someone of that gender whose kind and name differ from those in ``avoid``."""
    while True:
        kind = pick_kind(rng)
        if kind in (_MALE if female else _FEMALE) or kind in avoid:
            continue
        human = kind in words.PEOPLE
        draw = rng.random()
        if draw < 0.14:
            name = invented_word(rng).capitalize()
        elif human or draw < 0.45:
            name = rng.choice(words.GIRLS if female else words.BOYS)
        else:
            name = rng.choice(words.PET_NAMES)
        if name not in avoid and (not mix.gendered or sounds_female(name) == female):
            break
    draw = rng.random()
    trait = rng.choice(words.TRAITS) if draw < 0.45 else rng.choice(words.LITTLE)
    if draw < 0.12 and trait not in words.LITTLE:
        trait = f"{trait} little"
    return Being(kind, name, female, trait)


def pick_place(rng: Random) -> Place:
    if rng.random() < 0.07:
        prep, noun = rng.choice(words.ODD_PLACES)
        return Place(f"{prep} {noun}", f"{prep} {noun}")
    prep, noun = rng.choice(words.PLACES)
    again = f"{prep} the {noun}"
    if noun in words.UNIQUE or rng.random() < 0.25:
        return Place(again, again)
    look = f"{rng.choice(_PLACE_LOOKS)} " if rng.random() < 0.35 else ""
    return Place(f"{prep} a(n) {look}{noun}", again)


def pick_thing(rng: Random, pool: Sequence[str] = ()) -> Thing:
    base = invented_word(rng) if rng.random() < 0.04 else rng.choice(pool or words.OBJECTS)
    shade = rng.choice(words.SHADES) if rng.random() < 0.6 else ""
    return Thing(base, f"{shade} {base}" if shade and shade not in base else base)


def _being_slots(being: Being, keys: str) -> dict[str, str]:
    name, subject, object_, own = keys.split()
    return {
        name: being.name,
        subject: "she" if being.female else "he",
        object_: "her" if being.female else "him",
        own: "her" if being.female else "his",
    }


def write_story(
    rng: Random,
    *,
    plot: Plot | None = None,
    hero: Being | None = None,
    held_out: bool | None = None,
    mix: Mix = USUAL,
) -> Story:
    """A new story; ``held_out`` asks for a combination from, or outside, the held-out ones."""
    fixed = plot
    small = PRONOUNS if mix.pronouns else TINY
    while True:
        plot = fixed or rng.choice(small if rng.random() < mix.tiny else PLOTS)
        lead = hero or pick_being(rng, mix, female=rng.random() < 0.5)
        # Two pronouns make it plain who is meant; now and then they are the same.
        female = lead.female if rng.random() < 0.15 else not lead.female
        helper = pick_being(rng, mix, female=female, avoid=(lead.kind, lead.name))
        thing, place = pick_thing(rng, plot.things), pick_place(rng)
        if held_out is None or is_held_out(plot, lead, helper, thing) == held_out:
            break
    detail = rng.choice((0.1, 0.4, 0.5, 0.6, 0.9))
    named = rng.choice(("named", "named", "called"))
    slots = {
        **_being_slots(lead, "h he him his"),
        **_being_slots(helper, "g ge gm gs"),
        "himself": "herself" if lead.female else "himself",
        "hk": lead.kind,
        "gk": helper.kind,
        "intro_as": lead.described,
        "intro": f"{lead.described} {named} {lead.name}",
        "gplain": f"a(n) {helper.kind} named {helper.name}",
        "gintro": f"{helper.described} named {helper.name}",
        "o": thing.full,
        "ob": thing.base,
        "in": place.first,
        "inp": place.again,
    }
    base = Writer(rng, slots, RULES, detail)
    for group in plot.cases:
        for key, value in rng.choice(group).items():
            slots[key] = base.write(value)
    if "plant" in slots:
        slots["plantlow"] = slots["plant"][0].lower() + slots["plant"][1:]
    slots["moral"] = moral = rng.choice(plot.morals)
    return Story(plot, lead, helper, thing, place, detail, moral, base.write(plot.text), base)
