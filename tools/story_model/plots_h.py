"""Stories of two or three sentences; they also teach the model early to keep names apart."""

from __future__ import annotations

from tools.story_model.plot import Plot


def _tiny(key: str, text: str, summary: str, *ask: tuple[str, str], thing: bool = True) -> Plot:
    """A plot small enough to be told in one breath."""
    return Plot(
        key=key,
        themes=("kindness", "friends", "a small surprise", "a good deed"),
        morals=("small things can be big", "kindness always finds a way", "friends are a gift"),
        summary=summary,
        ask=ask,
        text=text,
        uses_object=thing,
        short=True,
        tiny=True,
    )


PLOTS: tuple[Plot, ...] = (
    _tiny(
        "tiny_meet",
        """{Intro} lived {in}. <morning>, {h} met {gintro}. ["Hello, {g}," said {h}. "Hello, {h}," said
        {g}.|{H} smiled at {g}, and {g} smiled at {h}.] [?<end>]""",
        "{H} met {g}.",
        ("Whom did {h} meet?", "{H} met {g}."),
        ("What did {g} say?", '{G} said, "Hello, {h}."'),
        thing=False,
    ),
    _tiny(
        "tiny_give",
        """{Intro} had a(n) {o}. {G} the {gk} had none. So {h} gave {g} the {ob}, and {g} [thanked
        {h}|hugged {h}|sang a song for {h}]. [?<end>]""",
        "{H} gave {g} a(n) {ob}.",
        ("What did {h} give {g}?", "{H} gave {g} a(n) {o}."),
        ("Who got the {ob}?", "{G} got the {ob} from {h}."),
    ),
    _tiny(
        "tiny_lost",
        """{H} the {hk} had lost {his} {o}. [{G} the {gk}|{Gintro}] found the {ob} {in}. "Is this
        yours, {h}?" asked {g}. "My {ob}!" cried {h}. "Thank you, {g}!" [?<glad>]""",
        "{H} lost {his} {ob}, and {g} found it.",
        ("Who found the {ob}?", "{G} found the {ob}."),
        ("Where was the {ob}?", "It was {inp}."),
    ),
    _tiny(
        "tiny_call",
        """"{H}! {H}!" called {g} the {gk}. But {h} the {hk} was [asleep|dreaming|far away] {in}.
        {G} waited until {h} came, and then {g} and {h} [ate some <food>|looked at the
        stars|sang a song] together.""",
        "{G} waited for {h}.",
        ("Who waited?", "{G} waited for {h}."),
        ("Where was {h}?", "{H} was {inp}."),
        thing=False,
    ),
    _tiny(
        "tiny_swap",
        """{Intro} and {gintro} lived {in}. {H} had some <food>, and {g} had some too. {H} gave half
        to {g}, and {g} gave half to {h}. [?<moral>]""",
        "{H} and {g} shared what they had.",
        ("Who lived {inp}?", "{H} and {g} lived {inp}."),
        ("What did {h} do?", "{H} shared with {g}."),
        thing=False,
    ),
    _tiny(
        "tiny_night",
        """{Intro} could not sleep. "Are you awake, {g}?" asked {h}. "Yes, {h}," said {g} the {gk}. So
        {h} and {g} counted the stars {inp} until {h} was asleep. Good night, {h}. Good night, {g}.""",
        "{H} could not sleep, and {g} stayed awake with {him}.",
        ("Who could not sleep?", "{H} could not sleep."),
        ("Who was awake too?", "{G} was awake too."),
        thing=False,
    ),
    _tiny(
        "tiny_fall",
        """<morning>, {h} the {hk} fell down {inp}. {G} the {gk} helped {h} up. "Are you all right,
        {h}?" asked {g}. "I am now," said {h}. [?<end>]""",
        "{H} fell down, and {g} helped {him} up.",
        ("Who fell down?", "{H} fell down."),
        ("Who helped {h}?", "{G} helped {h}."),
        thing=False,
    ),
    _tiny(
        "tiny_guess",
        """"Guess what I have," said {h} the {hk}. "A(n) {ob}?" asked {g} the {gk}. "How did you
        know?" cried {h}. {G} laughed. "I can see the {ob} behind you, {h}," said {g}.""",
        "{G} guessed that {h} had a(n) {ob}.",
        ("What did {h} have?", "{H} had a(n) {ob}."),
        ("Who guessed it?", "{G} guessed it."),
    ),
)

# In these, pronouns are dense.
PRONOUNS: tuple[Plot, ...] = (
    _tiny(
        "tiny_mood",
        """{H} the {hk} was [happy|tired|hungry|cold], so {he} [sang|sat down|ate {his} soup|put on {his}
        coat]. Then {he} [smiled|yawned|hummed], closed {his} eyes, and {he} thought of {his} friend {g}.
        [And {g}? {Ge} thought of {him} too.|Everyone liked {him}.]""",
        "{H} thought of {his} friend {g}.",
        ("What did {h} do?", "{He} closed {his} eyes and thought of {his} friend."),
        thing=False,
    ),
    _tiny(
        "tiny_love",
        """{Intro} loved {his} {o}. {He} washed it, {he} polished it, and {he} took it to bed with {him}.
        [When {g} asked for it, {he} gave it to {gm}, and {ge} was glad.|{G} saw {him} and laughed, and then
        {ge} hugged {him}.]""",
        "{H} loved {his} {ob}.",
        ("What did {h} love?", "{He} loved {his} {o}."),
    ),
    _tiny(
        "tiny_morning",
        """When {h} the {hk} woke up, {he} stretched. Then {he} made {his} bed, drank {his} tea and looked for
        {his} {ob}. When {g} the {gk} woke up, {ge} stretched too. Then {ge} made {gs} bed, drank {gs} milk and
        went to help {him}.""",
        "{H} looked for {his} {ob}, and {g} went to help {him}.",
        ("What did {g} do?", "{Ge} went to help {him}."),
    ),
    _tiny(
        "tiny_dream",
        """{Intro} had a dream. In {his} dream {he} could fly, and {he} flew to the moon. When {he} woke up, {he}
        told {g} about it. "I was there too," {ge} said, and {ge} winked at {him}.""",
        "{H} told {g} about {his} dream.",
        ("What did {h} dream?", "{He} dreamed that {he} could fly."),
        thing=False,
    ),
    _tiny(
        "tiny_hats",
        """{G} the {gk} lost {gs} hat, and {ge} was sad. So {h} the {hk} took off {his} own hat and gave it to {gm}.
        Now {he} was cold, but {he} did not mind. {Ge} saw it and gave {him} half of {gs} blanket.""",
        "{H} gave {g} {his} hat.",
        ("Why was {g} sad?", "{Ge} had lost {gs} hat."),
        ("What did {h} do?", "{He} gave {gm} {his} hat."),
        thing=False,
    ),
    _tiny(
        "tiny_mirror",
        """{H} the {hk} looked into the water. {He} saw {himself}, and {he} laughed. {His} nose was red, and so were
        {his} ears. {G} the {gk} came by. {Ge} looked at {him}, and {ge} laughed too, for {gs} nose was just as
        red.""",
        "{H} laughed at {himself}.",
        ("What did {h} see?", "{He} saw {himself}."),
        thing=False,
    ),
)
