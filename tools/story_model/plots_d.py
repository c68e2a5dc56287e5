"""Plots about being small, quarrels, stars and going home."""

from __future__ import annotations

from tools.story_model.plot import Plot

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="star",
        themes=("a star", "a fallen star", "the night sky", "letting go", "space"),
        morals=(
            "loving something sometimes means letting it go",
            "a friend stays a friend, even far away",
            "the brightest things belong to everyone",
        ),
        summary="{H} found a fallen star and, with {g}'s help, brought it back to the sky.",
        ask=(
            ("What did {h} find?", "{H} found a little star that had fallen from the sky."),
            ("How did the star get home?", "The star went home {way}."),
            ("Who helped {h}?", "{G} helped {h}."),
        ),
        cases=(
            (
                {"way": "in a big balloon"},
                {"way": "on the tail of a kite"},
                {"way": "in the basket of a stork"},
                {"way": "from the top of the highest hill"},
                {"way": "on a puff of wind"},
            ),
        ),
        text="""
        <open> [{He} loved to look at the night sky.|Every night {he} counted the stars before {he}
        went to sleep.] One night {he} saw a light [fall into the bushes|drop behind the shed]. {H}
        ran out to look. There, in the grass, lay a little star, [no bigger than a plum|as small as
        an apple and as warm as bread].

        ["Ouch," said the star. "I leaned over too far."|"I slipped," said the star in a tiny
        voice, "and now I do not know how to get home."] {H} carried it inside and put it [on a
        pillow|in a glass bowl by the bed]. [It lit up the whole room.|Now {he} did not need a lamp
        to read.] ["Will you stay with me?" asked {h}.|"You can live here," said {h}. "We will be
        so happy!"] The star said nothing. But [each night its light was a little weaker|each day
        it grew a little paler]. <sad>

        In the end {h} went to see {gintro}, [who knew about such things|who was known to be wise].
        ["A star needs the sky, just as a fish needs water," said {g}.|"It is homesick," said {g}.
        "You would be too."] ["But then I will lose my friend," said {h}.|{H} was quiet for a long
        time. "Then I must help it," {he} said.] ["You will not lose it," said {g}. "You will
        always know where it is."|"I will help you," said {g}.] That night they said goodbye, and
        the star went up {way}, higher and higher, until it was home.

        [Up in the sky, one star was blinking.|One star twinkled more than all the others.] ["It is
        winking at you," said {g}.|"Look," said {g}, "it is saying thank you."] {H} waved, [and
        there was a tear in {his} eye, but {he} was smiling|and {he} was sad and happy at once].
        Every night after that, {h} looked up before {he} went to bed and said, "Good night, little
        star." <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="bridge",
        themes=("a quarrel", "saying sorry", "stubbornness", "making peace", "an argument"),
        morals=(
            "it takes a big heart to say sorry first",
            "being friends is better than being right",
            "a quarrel has no winners",
        ),
        summary="{H} and {g} quarreled over a(n) {ob}, and then they made peace.",
        ask=(
            ("What did they quarrel about?", "They quarreled about a(n) {o}."),
            ("Who said sorry first?", "{H} said sorry first."),
            ("How did it end?", "{H} and {g} made peace and were friends again."),
        ),
        text="""
        <open> {H} and {gintro} were the best of friends. They [did everything together|shared
        every joke and every sandwich]. But [one morning|one day|one fine afternoon] they found
        a(n) {o} [lying in the road|by the side of the path], and both of them wanted it. ["I saw
        it first!" said {h}. "No, I did!" said {g}.|"It is mine," said {h}. "No, mine!" cried {g}.]
        [They pulled, one on each side.|Neither of them would let go.] ["You are not my friend any
        more!" shouted {g}.|"I never want to see you again!" shouted {h}.] And they went home by
        two different roads.

        The {ob} stayed where it was. [The next day {h} ate lunch alone. It did not taste of
        anything.|That evening {h} thought of a good joke, but there was nobody to tell it to.]
        [{He} was still angry, but more than that {he} was lonely.|"{G} should say sorry first,"
        {he} thought. And in {gs} house, {g} was thinking the very same thing.] [A day passed, and
        then another.|The days were long and dull.]

        Then [it began to snow|it began to rain], and {h} thought of the [silly|lovely] {ob} lying
        out there in the wet. [{He} put on {his} coat and went to get it.|{He} took an umbrella and
        went out.] And whom did {he} meet on the road? {G}, who had had the same idea. They [looked
        at their feet|stood there and said nothing]. Then {h} said it: "I am sorry." [It was only
        three words, but they were hard to say.|The words were small, but they changed everything.]
        "I am sorry too," said {g}, [so fast that it came out as one word|and {gs} eyes were wet].

        ["You take it," said {h}. "No, you take it," said {g}, and they nearly began to quarrel
        again.|"Let us share it," said {g}. "One day at your house, one day at mine."] They
        [laughed until they had to sit down in the road|laughed and laughed]. [In the end they gave
        the {ob} to a child who had none.|In the end the {ob} got a place on the fence between
        their two houses.] <close>
        """,
    ),
    Plot(
        key="small",
        themes=("being small", "being different", "a special talent", "believing in yourself"),
        morals=(
            "everyone is good at something",
            "what makes you different can be what makes you special",
            "even the smallest one can be a great help",
        ),
        summary="Everybody said {h} was {flaw}, but that was just what saved the day.",
        ask=(
            ("What did the others say about {h}?", "They said that {h} was {flaw}."),
            ("How did {h} help?", "{H} {did}."),
            ("Who needed help?", "{G} needed help."),
        ),
        cases=(
            (
                {
                    "flaw": "too small",
                    "trouble": "had locked {gs} baby brother in by mistake",
                    "did": "slipped in through the tiny window and opened the door",
                },
                {
                    "flaw": "too slow",
                    "trouble": "had lost a needle in the hay",
                    "did": "went through the hay so slowly that {he} missed nothing",
                },
                {
                    "flaw": "too loud",
                    "trouble": "was lost in the fog with {gs} boat",
                    "did": "called so loudly that {g} could follow the sound home",
                },
                {
                    "flaw": "too dreamy",
                    "trouble": "could not find the way home at night",
                    "did": "knew all the stars by name and followed them",
                },
                {
                    "flaw": "too careful",
                    "trouble": "wanted to cross the rotten bridge",
                    "did": "tested each board first and found the safe way across",
                },
                {
                    "flaw": "too curious",
                    "trouble": "had a wagon that would not roll",
                    "did": "looked under it and found the stone that blocked the wheel",
                },
            ),
        ),
        text="""
        <open> The others often said that {h} was {flaw}. ["You are {flaw} to play with us," they
        said.|"Why can't you be like everyone else?" they asked.] [{H} tried to change, but it did
        not work.|{H} tried and tried to be different, but at the end of the day {he} was still
        {himself}.] <sad>

        <morning>, there was great trouble. {Gintro} {trouble}! [The strongest one tried to help,
        but it was no use.|Everyone ran around and shouted, but nobody knew what to do.|They tried
        this and they tried that, but nothing worked.] ["What shall we do?" cried {g}.|{G} wrung
        {gs} hat and wept.] {H} stood at the back and [thought hard|watched]. Then {he} said
        quietly, "I think I can help." ["You?" said the others. "But you are {flaw}!"|A few of them
        laughed.] ["Let {him} try," said {g}.|"Please try," said {g}.]

        And {h} did. {He} {did}. [It did not take long.|Everyone held their breath.] [And then it
        was done!|It worked!] {G} [laughed and cried at once|hugged {him} tight]. ["If you had been
        any different, it would not have worked," said {g}.|"It is a good thing that you are just
        as you are," said {g}.]

        The others [looked at the ground|were ashamed]. ["We were wrong about you," they
        said.|"Will you play with us tomorrow?" they asked.] ["Let us forget it," said {h}, for
        {he} was not one to hold a grudge.|{H} smiled. "I am still {flaw}," {he} said. And then
        everybody laughed.] [?<glad>] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="home",
        themes=("going home", "being lost", "homesickness", "finding the way home", "family"),
        morals=(
            "home is where someone is waiting for you",
            "kind strangers can turn into friends",
            "it is good to help those who have lost their way",
        ),
        summary="{H} helped {g}, who was lost, to find the way home.",
        ask=(
            ("Who was lost?", "{G} was lost."),
            ("How did they find the way?", "They found the way by following {trail}."),
            ("What did {g} give {h}?", "{G} gave {h} a(n) {o}."),
        ),
        cases=(
            (
                {"parent": "mother", "parentsub": "she"},
                {"parent": "father", "parentsub": "he"},
                {"parent": "grandmother", "parentsub": "she"},
            ),
            (
                {
                    "trail": "the sound of the church bells",
                    "clue": "I can always hear bells at home",
                },
                {"trail": "the smell of fresh bread", "clue": "We live above a bakery"},
                {"trail": "the stream", "clue": "A stream runs past our kitchen window"},
                {"trail": "the flight of the geese", "clue": "The geese always land by our house"},
                {"trail": "the old railway tracks", "clue": "I hear the trains when I lie in bed"},
                {"trail": "a row of tall poplar trees", "clue": "Tall trees grow along our road"},
            ),
        ),
        text="""
        <open> [?<trait>] <morning>, {h} found {gintro} [crying under a tree|sitting on a stone and
        sobbing|going around and around in circles]. ["I want to go home," sobbed {g}, "but I do
        not know the way."|"I followed a butterfly," said {g}, "and now I am lost."] [?{H} gave
        {gm} a clean handkerchief.] ["Do not worry," said {h}. "I will help you."|"We will find
        your home," said {h}. "I promise."]

        ["What does your home look like?" asked {h}. "It has a roof and a door," said {g}. That did
        not help much.|"Which way did you come?" asked {h}. {G} pointed in three directions at
        once.] ["Close your eyes and think," said {h}. "What can you see or hear or smell at
        home?"|"Is there anything near your home that we could look for?" asked {h}.] {G} thought
        hard. "{clue}," {ge} said at last. "That is it!" cried {h}. So they followed {trail}.

        [It was a long way.|They walked and walked.] [When {g} got tired, {h} told {gm} a funny
        story.|They shared {h}'s last sandwich on the way.|It began to get dark, and {g} held on
        tight to {h}.] ["Are we lost again?" asked {g}. "Not as long as there are two of us," said
        {h}.|"What if we never find it?" asked {g}. "Then you will stay with me," said {h}. "But we
        will find it."] And then, behind the last bend, there was a house with a light in the
        window. ["That is it!" shouted {g}. "That is my home!"|{G} began to run.]

        {G}'s {parent} came running out and [held {gm} tight|hugged them both]. ["How can we thank
        you?" {parentsub} asked.|"We looked for you everywhere!" {parentsub} cried.] They all sat
        down to [<food>|hot soup and <food>], and when it was time to go, {g} gave {h} a(n) {o}.
        ["So that you will not forget me," {ge} said.|"It is my best one," {ge} said. "I want you
        to have it."] <close>
        """,
    ),
    Plot(
        key="winter",
        themes=("winter", "being hungry", "helping each other", "laziness", "snow", "the seasons"),
        morals=(
            "there is a time to play and a time to work",
            "a song can feed the heart when bread feeds the belly",
            "those who share will never be poor",
        ),
        summary="{H} forgot to prepare for winter, and {g} shared {gs} food with {him}.",
        ask=(
            ("Why was {h} hungry?", "{H} was hungry because {he} had not saved any food."),
            ("Who helped {h}?", "{G} took {h} in for the winter."),
            ("What did {h} give {g} in return?", "{H} gave {g} {gift}."),
        ),
        cases=(
            (
                {"hobby": "made up songs", "gift": "a new song every evening"},
                {"hobby": "told stories to the wind", "gift": "a new story every evening"},
                {"hobby": "danced in the sun", "gift": "dancing lessons by the fire"},
                {"hobby": "painted pictures", "gift": "a picture of summer for the wall"},
            ),
        ),
        text="""
        <open> All summer long, {h} {hobby}. [{He} had no other care in the world.|It was a lovely
        time.] Next door lived {gplain}, who worked from dawn to dusk. {G} [carried nuts and grain
        into the cellar|filled jar after jar and sack after sack]. ["Come and play!" called {h}. "I
        have no time," said {g}. "Winter is coming."|"Why do you work so hard?" asked {h}. "It is
        so warm and fine." "It will not stay warm," said {g}.] {H} only laughed. [?"Winter is a
        long way off," {he} said.]

        But [one morning there was frost on the window|the leaves fell, and then came the snow].
        {H} looked in the cupboard. There was [one dry crust|half an onion] and nothing more. [The
        wind blew through the cracks.|{He} put on all {his} clothes, and still {he} was cold.]
        <sad> ["{G} was right," {he} thought. "I have been a fool."|"I should have listened," said
        {h}.] For three days {he} was too proud to ask. On the fourth day {he} knocked on {g}'s
        door.

        ["You sang while I worked," {g} could have said. But {ge} did not.|{G} could have said, "I
        told you so." But {ge} did not.] ["You are as thin as a twig," {ge} said. "Come in. The
        soup is hot."|"Sit down by the fire," {ge} said. "There is enough for two."] {H} ate three
        bowls. ["I have nothing to give you," {he} said. "That is not true," said {g}. "It is so
        quiet here in the winter."|"How can I pay you back?" asked {h}. "The evenings are long,"
        said {g}, "and I only know how to work."]

        So {h} stayed, and {he} gave {g} {gift}. [Outside the snow piled up to the roof, but inside
        it was warm and merry.|It was the nicest winter that either of them had ever had.] And when
        spring came, {h} [rolled up {his} sleeves and|got up early and] helped {g} plant the field.
        ["First we work, and then we play," said {h}.|"And this summer," said {h}, "you will learn
        to play." "And you will learn to dig," said {g}.] <close>
        """,
        uses_object=False,
    ),
)
