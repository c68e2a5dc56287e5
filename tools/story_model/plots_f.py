"""Plots about treasure, strangers, practice and promises."""

from __future__ import annotations

from tools.story_model.plot import Plot

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="treasure",
        themes=("a treasure", "a treasure map", "pirates", "a treasure hunt", "greed"),
        morals=(
            "the real treasure is the friend beside you",
            "looking for something can be better than finding it",
            "not all treasures are made of gold",
        ),
        summary="{H} and {g} followed a map to a treasure, and it was {prize}.",
        ask=(
            ("What was the treasure?", "The treasure was {prize}."),
            ("Where was the treasure hidden?", "It was hidden {cache}."),
            ("Who found the map?", "{H} found the map."),
        ),
        cases=(
            (
                {"cache": "under a flat rock"},
                {"cache": "in a hollow tree"},
                {"cache": "behind a waterfall"},
                {"cache": "at the bottom of a dry well"},
            ),
            (
                {
                    "prize": "a jar of letters",
                    "why": "full of kind words from one friend to another",
                },
                {"prize": "a picture of two friends", "why": "and the two of them were laughing"},
                {"prize": "a bag of seeds", "why": "enough to fill a whole hillside with flowers"},
                {
                    "prize": "two small cups",
                    "why": "and a note that said: one for you and one for a friend",
                },
            ),
        ),
        text="""
        <open> [?<trait>] <morning>, a piece of paper fell out of an old book. It was a map with a
        red cross on it! [{H}'s heart began to race.|{H} could hardly believe {his} eyes.] ["A
        treasure!" {he} said. "I will be rich!"|"I will buy a palace," {he} thought, "with a
        hundred windows."] But part of the map was written in a language that {he} could not read.
        So {he} went to {gintro}, who [could read anything|had traveled far and wide]. ["I will
        help you," said {g}, "if you will share with me." {H} frowned, but then {he} agreed.|"If I
        help you, may I come along?" asked {g}. "All right," said {h}.]

        [They walked twenty steps to the north and forty to the east.|They counted steps and looked
        for a tree with two tops.] [They crossed a swamp on stepping stones|They crept through a
        tunnel full of bats|They rowed across a dark lake], and once, when {h} [slipped|got stuck],
        {g} [caught {him} just in time|pulled {him} free]. At night they [sat by the fire and
        shared their last apple|slept under one blanket], and {g} told {him} stories about faraway
        lands.

        At last they found the place, {cache}. They dug until they hit something hard. It was a
        box! {H} opened it with shaking fingers. There was no gold in it. All it held was {prize}, {why}.
        [For a moment {h} was disappointed.|"Is that all?" said {h}.] Then {he} looked at {g}, [who
        had mud on {gs} nose|who was tired and dirty and smiling], and {he} began to laugh. ["I
        think we found the treasure some time ago," {he} said.|"Do you know what?" {he} said. "This
        was the best week of my life."] [?<glad>] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="giant",
        themes=("a monster", "a misunderstanding", "prejudice", "a scary stranger", "a giant"),
        morals=(
            "you cannot tell from the outside what someone is like inside",
            "many scary things turn out to be friendly",
            "fear makes monsters bigger than they are",
        ),
        summary="Everyone ran away from {g}, but {h} found out that {ge} only wanted {want}.",
        ask=(
            ("What did {g} want?", "{G} only wanted {want}."),
            ("Why did everyone run away?", "They ran away because they were afraid of {g}."),
            ("Who was not afraid?", "{H} was brave enough to talk to {g}."),
        ),
        cases=(
            (
                {
                    "want": "someone to play chess with",
                    "sign": "a chessboard with the pieces set up",
                },
                {"want": "help with a thorn in {gs} foot", "sign": "a big thorn in {gs} foot"},
                {"want": "to give back a lost ball", "sign": "a small red ball in {gs} arms"},
                {"want": "to borrow some sugar", "sign": "an empty sugar bowl in {gs} arms"},
                {
                    "want": "to invite everyone to tea",
                    "sign": "a stack of cards, each with a name on it",
                },
            ),
        ),
        text="""
        <open> One night a strange sound was heard {inp}: boom, boom, boom. [Everyone locked the
        doors.|The lamps went out, one by one.] ["A monster is coming!" they whispered.|"It has
        teeth like knives," said one. "And eyes like fire," said another.] Nobody had really seen
        it, but everyone was sure.

        {H} was afraid too, but {he} was also curious. ["Has anyone asked what it wants?" {he}
        said. Nobody had.|"How do you know that it is bad?" asked {h}. Nobody could say.]
        <morning>, {he} followed the big footprints [over the hill|into the mist|through the wet
        grass]. Behind a rock {he} heard somebody [sniffling|sighing]. {He} [peeked around the
        corner|took one step closer, and then another]. There sat {gplain}, the biggest {he} had
        ever seen, with {sign}.

        ["Please do not run away," said {g}. "Everyone runs away."|"Oh," said {g}. "You are still
        here."] {H}'s knees were shaking, but {he} stayed. "What do you want?" {he} asked. {G}
        [blushed|looked down at the ground]. {Ge} only wanted {want}. "Is that all?" asked {h}, and
        {he} had to laugh. ["I know that I am big and loud," said {g}. "I try to walk softly, but
        it is hard."|"I knocked on every door," said {g}, "but nobody was ever home."]

        {H} [took {g} by the hand and led {gm} into the middle of the square|went from house to
        house and told everyone the truth]. At first only the children came out. Then came [the
        baker|the miller], and then everyone else. [By evening they were all laughing together.|And
        they all felt a little silly.] From then on, when they heard boom, boom, boom, they only
        said, "Put the kettle on! {G} is coming." <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="learn",
        themes=("learning something new", "practice", "the first time", "a teacher", "swimming"),
        morals=(
            "nobody is good at something the first time",
            "you have to fall a few times before you can stand",
            "practice is stronger than talent",
        ),
        summary="{H} wanted to learn {skill} and gave up almost too soon, but {g} helped {him}.",
        ask=(
            ("What did {h} learn to do?", "{H} learned {skill}."),
            ("Who taught {h}?", "{G} taught {h}."),
            ("Was it easy?", "No, it was hard at first, and {h} almost gave up."),
        ),
        cases=(
            (
                {
                    "skill": "to swim",
                    "fail": "swallowed half of the lake",
                    "yes": "swam all the way across",
                },
                {
                    "skill": "to skate",
                    "fail": "landed on {his} bottom",
                    "yes": "glided over the ice like a bird",
                },
                {
                    "skill": "to ride a bicycle",
                    "fail": "rode straight into a hedge",
                    "yes": "rode once around the square",
                },
                {
                    "skill": "to dance",
                    "fail": "stepped on everyone's toes",
                    "yes": "danced until midnight",
                },
                {
                    "skill": "to read",
                    "fail": "mixed up all the letters",
                    "yes": "read the whole page out loud",
                },
                {
                    "skill": "to whistle",
                    "fail": "only blew air and a few crumbs",
                    "yes": "whistled like a nightingale",
                },
                {
                    "skill": "to juggle",
                    "fail": "dropped an egg on {his} head",
                    "yes": "kept three apples in the air",
                },
            ),
        ),
        text="""
        <open> {H} could do many things, but one thing {he} could not do: {he} had never learned
        {skill}. [All the others could do it, and it looked so easy.|{He} watched the others and
        sighed.] ["I want to learn it," {he} said.|"How hard can it be?" {he} said.] <morning>,
        when nobody was looking, {he} tried. {He} {fail}. [?{He} tried again, and it was even
        worse.] ["I am no good at this," said {h}.|"I will never learn it," said {h}, and went
        home.] <sad>

        <meet> ["I saw you this morning," {ge} said. "Why did you stop?"|"Why did you give up?" {ge} asked.] {H} [turned
        red|looked away]. "Because I cannot do it," {he} said. ["Neither could I," said {g}. "It
        took me a whole year."|"You cannot do it yet," said {g}. "That is a small word, but an
        important one."] ["Come back tomorrow," said {g}. "I will show you one thing, only
        one."|"Let us try together," said {g}, "a little bit each day."]

        So they practiced. On Monday {h} {fail} again. On Tuesday it went [a little better|a tiny
        bit better]. On Wednesday it rained, and on Thursday {he} almost gave up. ["One more time,"
        said {g}. It was always one more time.|"Breathe," said {g}, "and do not look down."] On
        Friday [something clicked|it happened]. {H} {yes}! [{He} did not even notice it at
        first.|"Look at me!" {he} shouted. "Look at me!"] {G} [clapped and cheered|threw {gs} hat
        into the air]. [?<glad>] [?<thanks>] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="mystery",
        themes=("a mystery", "a detective", "a thief", "solving a puzzle", "a crime"),
        morals=(
            "you should not blame anyone before you know the truth",
            "it pays to look twice",
            "a good question is better than a quick answer",
        ),
        summary="{H} found out that it was {thief} who had taken {g}'s {ob}.",
        ask=(
            ("Who took the {ob}?", "It was {thief}."),
            ("What was missing?", "{G}'s {o} was missing."),
            ("What was the clue?", "The clue was {clue}."),
        ),
        cases=(
            (
                {
                    "thief": "a magpie building a nest",
                    "clue": "a black and white feather",
                    "den": "high up in a poplar tree",
                },
                {
                    "thief": "a puppy who wanted to play",
                    "clue": "a row of small paw prints",
                    "den": "in a hole under the fence",
                },
                {
                    "thief": "{g}'s own little brother",
                    "clue": "a trail of cookie crumbs",
                    "den": "in the little shed",
                },
                {
                    "thief": "the wind, of all things",
                    "clue": "a window that did not close",
                    "den": "in the rose bush under the window",
                },
                {
                    "thief": "a baby goat",
                    "clue": "a bitten leaf of cabbage",
                    "den": "behind the hay",
                },
            ),
        ),
        text="""
        <open> {He} [noticed things that others did not see|loved nothing better than a good
        riddle|wanted to be a great detective]. <morning>, there was shouting in the street. It was
        {gintro}. ["My {o} is gone!" cried {g}. "Somebody has stolen it!"|"Thief! Thief!" cried
        {g}. "Who took my {o}?"] [Everyone began to talk at once.|A crowd gathered.] "It must have been the stranger at the inn," [said one|somebody said]. "Wait,"
        said {h}. "Let us look first."

        {H} [took out {his} notebook|got down on the ground]. ["When did you see it last?" {he}
        asked. "Last night," said {g}, "right here by the window."|"Where did you keep it?" {he}
        asked. "On this shelf," said {g}.] {H} looked [high and low|at the floor, the wall and the
        door]. Then {he} [said, "Aha!"|stopped]. There was {clue}. ["What does that mean?" asked
        {g}. "We will see," said {h}.|"Interesting," said {h}. "Very interesting."]

        They [tiptoed|crept] outside. {H} [looked to the left and to the right|thought for a
        while]. And there, {den}, was the {ob}! The thief was {thief}. [{G} stared, and then {ge}
        burst out laughing.|{G} turned red. "And I blamed the poor stranger," {ge} said.] ["Nobody
        meant any harm," said {h}.|"You see," said {h}, "there was no thief at all, not really."]
        [{G} went to the inn and said sorry.|"I am sorry that I shouted," said {g}.] [?<thanks>]
        [And when anything is missing {inp} now, everyone says, "Ask {h}!"|From that day on, {h}
        was known as the best detective {inp}.] [?<moral>]
        """,
    ),
    Plot(
        key="letter",
        themes=("a letter", "a promise", "keeping a promise", "a message", "duty", "a long walk"),
        morals=(
            "a promise is a promise",
            "a few good words can change a whole day",
            "it is worth going the extra mile for someone",
        ),
        summary="{H} carried a letter through {hard} to {g}, as {he} had promised.",
        ask=(
            ("What did {h} carry?", "{H} carried a letter."),
            ("Who was the letter for?", "The letter was for {g}."),
            ("What was in the letter?", "It said, '{news}.'"),
        ),
        cases=(
            (
                {"hard": "a snowstorm"},
                {"hard": "a dark forest"},
                {"hard": "a flooded valley"},
                {"hard": "a desert of hot sand"},
                {"hard": "a thick fog"},
            ),
            (
                {
                    "news": "I am coming home in spring",
                    "from": "{gs} brother, who was far away at sea",
                },
                {"news": "I forgive you, and I miss you", "from": "an old friend"},
                {"news": "You have a new little niece", "from": "{gs} sister"},
                {"news": "Your song won the first prize", "from": "the city"},
            ),
        ),
        text="""
        <open> <morning>, [the old postman hurt his foot|the old postman was ill in bed], and there
        was one letter left in his bag. ["Who will take it?" he asked. "It must get there
        today."|"It has to be there by tonight," he said. "I gave my word."] [Everyone looked the
        other way, for it was a long way.|The way was long, and nobody wanted to go.] "I will,"
        said {h}. "I promise."

        {He} put the letter under {his} coat and set out. [?<weather>] [At first it was easy.|The
        first hour was pleasant.] But then {he} came to {hard}. [{He} could not see the way.|{He}
        had never seen anything like it.] ["Turn back," croaked a crow. "It is only a
        letter."|"Nobody will blame you if you go home," {he} told {himself}.] {H} felt for the
        letter. [It was still warm and dry.|It was still there.] ["I promised," {he} said, and went
        on.|"Somebody is waiting for it," {he} thought, and took another step.] [{He} fell down and
        got up again.|{He} sang to keep {himself} awake.] [?Step by step, the hours went by.]

        It was almost midnight when {he} knocked on the door of {gintro}. ["A letter? For me?" said
        {g}.|{G} opened in {gs} nightcap. "A letter!" {ge} cried.] It was from {from}. {G} read it
        once, and then {ge} read it out loud: "{news}." [{Gs} eyes filled with tears of joy.|{Ge}
        laughed and cried at the same time.] ["I have waited for this for seven years," said
        {g}.|"You do not know what this means to me," said {g}.] {H} was [given a bowl of soup and
        the best bed in the house|put by the fire with a bowl of soup]. <glad> <close>
        """,
        uses_object=False,
    ),
)
