"""Conversations around stories: how people ask, and what the model answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from tools.story_model import talk
from tools.story_model.grammar import USUAL, Mix, Story, write_story
from tools.story_model.template import Writer, tidy


@dataclass(frozen=True)
class Sample:
    """One training document: either a conversation or, with no turns, plain text."""

    turns: tuple[tuple[str, str], ...] = ()
    plain: str = ""


def _say(rng: Random, template: str, **slots: str) -> str:
    return Writer(rng, slots, talk.RULES).write(template)


def plural(noun: str) -> str:
    if noun.endswith(("s", "sh", "ch", "x", "z")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("mouse", "wolf", "sheep", "fish", "moose", "deer", "man", "goose", "calf")):
        return noun
    return noun + "s"


def _who(rng: Random, story: Story) -> str:
    hero = story.hero
    draw = rng.random()
    if draw < 0.45:
        return f"a(n) {hero.kind}"
    if draw < 0.65 and hero.trait:
        return hero.described
    if draw < 0.85:
        return f"a(n) {hero.kind} {rng.choice(('named', 'called', 'named'))} {hero.name}"
    if draw < 0.89:
        return plural(hero.kind)
    if draw < 0.93:
        return hero.name
    if draw < 0.96:
        return f"{rng.choice(('my', 'our', 'the'))} {hero.kind} {hero.name}"
    return f"{hero.described} named {hero.name}"


def _helper(rng: Random, story: Story) -> str:
    helper = story.helper
    named = f"a(n) {helper.kind} named {helper.name}"
    return rng.choice((f"a(n) {helper.kind}",) * 4 + (helper.described, named))


def _length(story: Story) -> str:
    if story.plot.tiny:
        return "tiny"
    if story.plot.short or story.detail < 0.2:
        return "short"
    return "long" if story.detail > 0.8 else "any"


def ask_for(rng: Random, story: Story) -> str:
    """A request that the story answers: everything it names is in the story."""
    slots = {
        "who": _who(rng, story),
        "kind": story.hero.kind,
        "name": story.hero.name,
        "helper": _helper(rng, story),
        "helperkind": story.helper.kind,
        "thing": f"a(n) {story.thing.full if rng.random() < 0.4 else story.thing.base}",
        "thingbase": story.thing.base,
        "place": rng.choice((story.place.first, story.place.again)),
        "theme": story.writer.write(rng.choice(story.plot.themes)),
        "short": rng.choice(talk.LENGTHS[_length(story)]),
    }
    last = "thing" if story.plot.uses_object else "helper"
    way = rng.choices(
        ("any", "who", "theme", "place", "helper", last), weights=(16, 32, 12, 12, 8, 20)
    )[0]
    way = "tiny" if story.plot.tiny else way
    text = _say(rng, rng.choice(talk.ASKS[way]), **slots)
    return _casual(rng, text[0].upper() + text[1:])


def _casual(rng: Random, text: str) -> str:
    """People do not always type with care."""
    draw = rng.random()
    if draw < 0.12:
        return text.lower().rstrip(".!?")
    if draw < 0.22:
        return text.rstrip(".!?")
    return text


def follow_up(rng: Random, story: Story) -> tuple[str, str]:
    """A question about the story just told, and its answer."""
    slots = dict(story.writer.slots)
    slots["hdesc"] = tidy(f"a(n) {story.hero.kind}")
    slots["gdesc"] = tidy(f"a(n) {story.helper.kind}")
    slots["title"] = _title(rng, story)
    slots["summary"] = story.writer.write(story.plot.summary)
    writer = Writer(rng, slots, talk.RULES)
    if rng.random() < 0.45:
        question, answer = rng.choice(story.plot.ask)
    else:
        question, answer = rng.choice(talk.ABOUT_STORY)
    question, answer = writer.write(question), writer.write(answer)
    return _casual(rng, question), answer[0].upper() + answer[1:]


def _title(rng: Random, story: Story) -> str:
    thing = story.thing.full if story.plot.uses_object else story.helper.kind
    return rng.choice((
        f"{story.hero.name} and the {_capitals(thing)}",
        f"{story.hero.name} the {_capitals(story.hero.kind)}",
        f"{story.hero.name} and {story.helper.name}",
    ))  # fmt: skip


def _capitals(text: str) -> str:
    small = {"of", "the", "a"}
    return " ".join(w if w in small else w[:1].upper() + w[1:] for w in text.split())


def _small_talk(rng: Random) -> tuple[str, str]:
    questions, answers = rng.choice(talk.SMALL_TALK)
    return _casual(rng, _say(rng, rng.choice(questions))), _say(rng, rng.choice(answers))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?]) ", text, maxsplit=1)[0]


def _cannot(rng: Random) -> tuple[str, str]:
    question = _say(rng, rng.choice(talk.OUT_OF_SCOPE))
    return _casual(rng, question[0].upper() + question[1:]), _say(rng, rng.choice(talk.REFUSALS))


def _continue(rng: Random, story: Story) -> tuple[str, str]:
    cut = story.text.find(". ", rng.randrange(20, 160))
    cut = cut if 0 < cut < 400 else story.text.find(". ")
    begin = _say(rng, "[Continue this story|Go on with this story|Finish this story]: ")
    return begin + " " + story.text[: cut + 1], story.text[cut + 2 :]


def make_sample(rng: Random, *, held_out: bool | None = None, mix: Mix = USUAL) -> Sample:
    """One document of the training mix."""
    draw = rng.random()
    if draw < 0.15:
        return Sample(plain=write_story(rng, held_out=held_out, mix=mix).text)
    turns: list[tuple[str, str]] = []
    if rng.random() < 0.2:
        turns.append(("system", _say(rng, rng.choice(talk.SYSTEMS))))

    def add(pair: tuple[str, str]) -> None:
        turns.extend((("user", pair[0]), ("assistant", pair[1])))

    if draw < 0.22:
        for _ in range(rng.choice((1, 1, 2, 3))):
            add(_small_talk(rng) if rng.random() < 0.6 else _cannot(rng))
        return Sample(tuple(turns))
    story = write_story(rng, held_out=held_out, mix=mix)
    accepted = False
    if draw < 0.34:
        question, answer = _small_talk(rng) if rng.random() < 0.7 else _cannot(rng)
        accepted = rng.random() < 0.4
        if accepted:
            offer = _say(rng, rng.choice(talk.OFFERS), who=_who(rng, story))
            answer = f"{_first_sentence(answer)} {offer}"
        add((question, answer))
    if accepted:
        add((_casual(rng, rng.choice(talk.YES)), story.text))
    elif draw > 0.98:
        add(_continue(rng, story))
    else:
        add((ask_for(rng, story), story.text))
    asked: set[str] = set()
    while rng.random() < 0.38 and len(turns) < 9:
        draw = rng.random()
        if draw < 0.12:
            story = write_story(rng, held_out=held_out, mix=mix)
            another = ask_for(rng, story) if rng.random() < 0.4 else _another(rng, story)
            add((another, story.text))
        elif draw < 0.25:
            add(_small_talk(rng) if rng.random() < 0.8 else _cannot(rng))
        else:
            question, answer = follow_up(rng, story)
            if answer not in asked:
                add((question, answer))
            asked.add(answer)
    return Sample(tuple(turns))


def _another(rng: Random, story: Story) -> str:
    slots = {
        "who": _who(rng, story),
        "kind": story.hero.kind,
        "theme": story.writer.write(rng.choice(story.plot.themes)),
        "place": story.place.again,
    }
    return _casual(rng, _say(rng, rng.choice(talk.ANOTHER), **slots))
