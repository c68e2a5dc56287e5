"""Plots about others: friends, rivals, strangers, those in need."""

from __future__ import annotations

from tools.story_model.plot import Plot
from tools.story_model.words import LIGHT

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="friend",
        themes=("friendship", "making a friend", "being lonely", "a new friend"),
        morals=(
            "sometimes you have to say hello first",
            "a friend may be waiting where you least expect one",
            "you do not have to be alike to be friends",
        ),
        summary="{H} was lonely until {he} met {g}, and the two became friends.",
        ask=(
            ("Why was {h} sad?", "{H} was sad because {he} had no friends."),
            ("Who became {h}'s friend?", "{G} became {h}'s friend."),
            ("What did they do together?", "They {game}."),
        ),
        cases=(
            (
                {"game": "built a little dam in the stream", "play": "building a dam of sticks"},
                {"game": "flew a paper bird in the wind", "play": "folding a bird out of paper"},
                {"game": "made up a song", "play": "humming a tune that had no words yet"},
                {"game": "built a tower of stones", "play": "stacking flat stones"},
                {"game": "drew pictures in the sand", "play": "drawing in the sand with a stick"},
                {"game": "counted all the clouds", "play": "looking for shapes in the clouds"},
            ),
        ),
        text="""
        <open> [{He} had a cozy home and plenty to eat, but {he} had no friends.|{He} had
        everything {he} needed, except for one thing: a friend.|{He} was new there and did not know
        anybody.] [Every day {he} ate {his} lunch alone.|{He} talked to the moon at night, but the
        moon never answered.|{He} watched the others play and was too shy to join them.] <sad>

        <morning>, {h} [made up {his} mind|looked in the mirror and took a deep breath|put on {his}
        best hat]. ["Today I will find a friend," {he} said.|"If a friend will not come to me, I
        will go and look for one," {he} said.] First {he} asked [the postman|the old crow|the
        miller], who was too busy to talk. [Then {he} asked the ants, but they had no time to
        stop.|Then {he} asked the cows, but they only went on chewing.] [?"Maybe there is no friend
        for me," {he} thought.]

        {H} was about to go home when {he} saw {gintro}. {G} was all alone too, {play}. [{H}'s
        heart beat fast.|{H} almost turned around.|{H} did not know what to say.] ["Hello," {he}
        said at last. "May I help?"|"That looks like fun," {he} said softly. "May I join you?"] {G}
        looked up. ["I was hoping that someone would ask," said {g}.|"Oh, yes!" said {g}. "It is
        much better with two."|"I have been alone all week," said {g}. "Please sit down."]

        So they {game}, and [the afternoon flew by|neither of them noticed how late it was|they
        laughed until their bellies hurt]. [{H} liked to talk, and {g} liked to listen.|{G} was
        loud and {h} was quiet, but it did not matter.|They were as different as day and night, but
        it did not matter.] ["Will you come back tomorrow?" asked {g}. "Tomorrow and every day,"
        said {h}.|"Same time tomorrow?" asked {h}. "I will be here," said {g}.] [?<glad>] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="storm",
        themes=("a storm", "a rainy night", "helping others", "being kind to strangers"),
        morals=(
            "there is always room for one more",
            "kindness is the warmest fire",
            "a storm is not so bad when you are together",
        ),
        summary="{H} let {g} and many others in from the storm.",
        ask=(
            ("Who knocked on the door?", "{G} knocked on the door first."),
            ("What was the weather like?", "There was a great storm with wind and rain."),
            ("What did {h} do in the storm?", "{H} opened the door and let everyone in."),
        ),
        text="""
        <open> {His} home was small: [one bed, one chair and one warm stove|just one room with a
        little fire|a bed, a table and a lamp in the window]. [?<trait>]

        One night a great storm came. [The wind howled and the rain beat against the roof.|Thunder
        rolled, and lightning cut the sky in two.|The trees bent low, and the rain fell like a
        river.] {H} [was just about to blow out the lamp|had just pulled up the blanket|was
        stirring {his} soup] when {he} heard a knock. Outside stood {gintro}, [wet from head to
        toe|shivering in the cold|dripping like a sponge]. ["Please, may I come in?" asked {g}. "My
        house has lost its roof."|"I cannot find my way in the dark," said {g}. "May I stay until
        morning?"]

        ["Come in, come in!" said {h}. "Sit by the fire."|{H} opened the door wide. "There is
        always room," {he} said.] No sooner had {g} sat down than there was another knock. It was
        [a family of mice|two frightened rabbits|three small birds]. [And after them came an old
        goat.|And then came a tired donkey with a bundle on its back.|And behind them stood a very
        wet cat.] Soon the little room was [as full as an egg|so full that nobody could turn
        around|full to the brim].

        ["I am afraid I have only a little soup," said {h}.|"I do not have much to eat," said {h}.]
        ["I have some carrots," said {g}.|"I saved a loaf of bread," said {g}.] The others had
        [something too: a nut, an onion, a bit of cheese|a bit of this and a bit of that]. They put
        it all in the pot, and it was the best soup {h} had ever tasted. [While the storm roared
        outside, they told stories and sang.|They sat close together, and nobody was afraid of the
        thunder any more.|One after another, they fell asleep by the fire.]

        In the morning the sun was shining. [Everyone went along to fix {g}'s roof, and it was done
        by noon.|The guests swept the floor and washed the pot before they left.] <thanks> <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="rescue",
        themes=("a rescue", "courage", "being brave", "a hero", "saving a friend"),
        morals=(
            "you can be afraid and brave at the same time",
            "even someone small can do something big",
            "courage means helping even when your knees shake",
        ),
        summary="{H} saved {g} who was {trap}, although {he} was afraid.",
        ask=(
            ("What happened to {g}?", "{G} was {trap}, and {h} saved {gm}."),
            ("How did {h} save {g}?", "{H} used {tool}."),
            ("Was {h} afraid?", "Yes, {h} was afraid, but {he} helped {g} all the same."),
        ),
        cases=(
            (
                {
                    "trap": "stuck in a deep hole",
                    "tool": "a long rope tied to a tree",
                    "act": "tied the rope to a tree and let the other end down",
                },
                {
                    "trap": "caught in the fast river",
                    "tool": "a long branch",
                    "act": "lay down at the edge and held out a long branch",
                },
                {
                    "trap": "trapped under a fallen tree",
                    "tool": "a strong pole",
                    "act": "pushed a strong pole under the trunk and leaned on it",
                },
                {
                    "trap": "lost in the thick fog",
                    "tool": "a bell and a lamp",
                    "act": "held up a lamp and rang a bell, again and again",
                },
                {
                    "trap": "stuck on a high ledge",
                    "tool": "a ladder and a piece of rope",
                    "act": "climbed up a shaky ladder and threw a piece of rope across",
                },
                {
                    "trap": "on a piece of ice that was drifting away",
                    "tool": "a plank of wood",
                    "act": "slid a plank across the cold water, inch by inch",
                },
            ),
        ),
        text="""
        <open> {H} was [afraid of many things: the dark, loud noises and deep water|not very big
        and not very strong|so quiet that others often forgot about {him}]. ["I am not brave," {he}
        used to say.|The others sometimes laughed at {him}.|"Heroes are big and loud," {he}
        thought, "and I am neither."]

        <morning>, {h} was [gathering wood|on {his} way to the market|walking alone] when {he}
        heard a cry. "Help! Somebody help me!" [{He} ran toward the voice.|{He} stopped and
        listened. There it was again.] It was {gintro}, and {ge} was {trap}! ["Please hurry!"
        called {g}.|"I cannot hold on much longer!" cried {g}.]

        {H}'s [knees shook|heart pounded|mouth went dry]. [{He} looked around, but there was nobody
        else.|There was no time to get help.] ["What if I cannot do it?" {he} thought. "But what if
        I do not try?"|"I am afraid," {he} whispered, "but {g} is more afraid than I am."|"Stay
        calm!" {he} called. "I am coming!"] Then {h} had an idea. {He} {act}. ["Hold on tight!"
        {he} shouted.|"Now!" {he} shouted. "Come to me!"|{His} legs trembled, but {he} did not
        stop.] [Slowly, slowly|Little by little|With all {his} strength], {he} [brought {g} to
        safety|got {g} out]. [They both fell to the ground, too tired to speak.|For a while they
        only sat there and breathed.]

        ["You saved my life," said {g}. "You are the bravest {hk} I know."|"That was the bravest
        thing I have ever seen," said {g}.] ["Me? Brave?" said {h}. "I was scared the whole
        time."|"But I was shaking all over," said {h}.] ["That is what makes it brave," said
        {g}.|"Everyone shakes," said {g}. "You did it anyway."] [?<glad>] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="race",
        themes=("a race", "winning", "being a good sport", "a contest", "being fast"),
        morals=(
            "being kind matters more than winning",
            "there are things that are worth more than a prize",
            "you can lose a race and still win a friend",
        ),
        summary="{H} gave up first place in a race to help {g}.",
        ask=(
            ("Who won the race?", "{Winner} won the race, but everyone cheered for {h}."),
            ("Why did {h} stop?", "{H} stopped to help {g}."),
            ("What was the prize?", "The prize was a(n) {o}."),
        ),
        cases=(
            (
                {"fall": "had tripped over a root"},
                {"fall": "had slipped in the mud"},
                {"fall": "had twisted {gs} ankle"},
                {"fall": "had run into a thorn bush"},
            ),
            (
                {"winner": "a speedy hare"},
                {"winner": "a long-legged ostrich"},
                {"winner": "the mayor's son"},
                {"winner": "a young deer"},
            ),
        ),
        text="""
        <open> Every year there was a great race, and the prize was a(n) {o}. {H} [wanted to win it
        more than anything|had dreamed of it since {he} was little|had come last every time]. [So
        {he} practiced every day, up the hill and down again.|{He} got up before the sun every day
        to practice.] [?"This year I will win," {he} said.]

        The day of the race came. [Flags waved, and a band was playing.|Everybody came to watch.]
        Next to {h} stood {gintro}. ["Good luck," said {g}. "Good luck to you too," said {h}.|"May
        the best one win," said {g} with a grin.] Ready, set, go! [Off they went in a cloud of
        dust.|They shot off like arrows.] [Soon {h} was in front.|{H} passed one runner and then
        another, until {he} was first.] [?The wind sang in {his} ears.]

        [The finish line was already in sight|{He} could already hear the crowd] when there was a
        cry behind {him}. {H} looked back. {G} {fall} and could not get up. [All the others ran
        right past {gm}.|Nobody else stopped.] {H} looked at the finish line, and then {he} looked
        at {g}. [It was the hardest choice of {his} life.|There was the prize, so close.] Then {he}
        turned around. ["Lean on me," {he} said.|"Come on," said {h}. "We will finish together."]
        ["But you will lose!" said {g}.|"What about the {ob}?" asked {g}.] ["There is a race every
        year," said {h}.|"I do not want it that way," said {h}.]

        {Winner} won. Side by side, {h} and {g} crossed the line last of all. But then something
        strange happened: [the crowd cheered louder than ever|everyone stood up and clapped|the
        band began to play just for them]. [?{Winner} came over and shook {h}'s hand.] [?<glad>]
        <close>
        """,
    ),
    Plot(
        key="grumpy",
        things=LIGHT,
        themes=("a grumpy neighbor", "kindness", "not judging others", "a neighbor"),
        morals=(
            "a kind word can open a locked door",
            "those who seem angry are often only lonely",
            "you should not judge anyone before you know them",
        ),
        summary="Everyone was afraid of {g}, but {h} found out that {ge} was only lonely.",
        ask=(
            ("Why was {g} grumpy?", "{G} was grumpy because {ge} was lonely."),
            ("Who was afraid of {g}?", "Everyone was afraid of {g}, and at first {h} was too."),
            ("What went over the fence?", "{H}'s {o} went over the fence."),
        ),
        text="""
        <open> Next door lived {gintro}, and everybody was afraid of {gm}. ["{G} is as mean as a
        thorn," people said.|They said that {ge} had not smiled in ten years.|{Ge} never said
        hello, and {gs} curtains were always closed.] [?{H} always walked past that house on
        tiptoe.]

        <morning>, {h}'s {o} [flew over the fence|fell over the wall] and landed right in {g}'s
        yard. [{H} waited and hoped that it would come back by itself, but of course it did
        not.|{H} wanted to leave it there, but {he} loved the {ob} too much.] So {he} [took a deep
        breath|gathered all {his} courage] and knocked. The door opened with a creak. ["What do you
        want?" growled {g}.|"Go away!" said a rough voice.] [{H} almost ran off.|{H} swallowed
        hard.] ["Good day," {he} said. "I am sorry to bother you. My {ob} is in your
        yard."|"Please," said {h}, "may I get my {ob}? And you have very pretty roses."]

        {G} [looked surprised|blinked|opened the door a little wider]. ["Nobody has said a kind
        word to me in a long time," {ge} said.|"You are the first one to knock in years," {ge}
        said.] [{H} looked past {gm} and saw a table with only one cup.|In the window {h} saw one
        chair and one plate.] ["Would you like some company?" asked {h}.|"Shall I come back for tea
        tomorrow?" asked {h}.] For a moment there was no answer. Then, very slowly, {g} smiled.

        The next day {h} came with [a basket of cookies|some <food>], and {g} told {him} [about the
        ships {ge} had sailed on|about the days when {ge} was young|the best stories {he} had ever
        heard]. [?It turned out that {g} could also do card tricks.] Soon [others came along
        too|the curtains were open every day], and nobody was afraid of {g} any more. <close>
        """,
    ),
    Plot(
        key="lie",
        themes=("lying", "a lie", "crying wolf", "honesty and trust", "boasting"),
        morals=(
            "trust is easy to lose and hard to win back",
            "a lie may be quick, but the truth goes further",
            "you do not need to boast to be liked",
        ),
        summary="{H} told tall tales until nobody believed {him}, and then {he} needed help.",
        ask=(
            ("Why did nobody believe {h}?", "Nobody believed {h} because {he} had lied before."),
            ("What really happened?", "There was {danger}."),
            ("Who believed {h}?", "{G} believed {h} in the end."),
        ),
        cases=(
            (
                {"danger": "a fire in the barn", "end": "put the fire out with buckets of water"},
                {"danger": "a crack in the dam", "end": "filled the crack with stones and clay"},
                {"danger": "a lamb stuck in the mud", "end": "pulled the lamb out of the mud"},
                {"danger": "a flood coming down the hill", "end": "piled up sacks of sand in time"},
                {"danger": "a hole in the ferry boat", "end": "stopped the leak just in time"},
            ),
            (
                {"fib": "seen a whale in the pond"},
                {"fib": "wrestled three wolves at once"},
                {"fib": "found a gold mine under {his} bed"},
                {"fib": "flown around the moon"},
                {"fib": "had tea with the king"},
            ),
        ),
        text="""
        <open> {H} liked to tell stories, and not all of them were true. ["I have {fib}," {he}
        would say.|Once {he} told everybody that {he} had {fib}.] [When others came running to see,
        {he} laughed at them.|At first everyone listened with big eyes.] But after a while [nobody
        listened any more|they only rolled their eyes|they stopped believing a word {he} said].
        [?"There goes {h} with another tall tale," they said.]

        <morning>, {h} saw something terrible: {danger}! [This time it was real.|This time it was
        no story.] {He} ran as fast as {he} could. "Help!" {he} shouted. "There is {danger}!" [But
        the miller only laughed.|But the baker did not even look up from his bread.] ["Nice try,"
        said the others.|"You will not fool us again," they said.] [<sad>|{H} had tears in {his}
        eyes. "But it is true!" {he} cried.]

        Then {gintro} [stopped and looked at {him}|put down {gs} basket]. ["You have told me many
        stories," said {g}, "but you never cried before."|"Look me in the eye," said {g}. "Is it
        true?"] ["I promise," whispered {h}.|"It is true," said {h}, "and I am sorry for all the
        times it was not."] ["Then let us go," said {g}.|"I believe you," said {g}. "Quick, show
        me!"] {G} called the others, and together they {end}.

        [Afterward {h} stood before them all. "I am sorry," {he} said. "From now on I will tell the
        truth."|When it was over, {h} said, "I will never lie to you again."] ["And if you have a
        made-up story," said {g}, "just tell us that it is one. We like stories."|"That is a good
        start," said {g}.] [So every Sunday {h} told a story by the fire, and it always began with
        the words, "This is not true, but it is fun."|It took some time, but they learned to trust
        {him} again.] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="song",
        themes=("music", "singing", "stage fright", "being shy", "a song", "a talent"),
        morals=(
            "your own voice is the one the world needs",
            "a friend can make you brave",
            "it is all right to be nervous",
        ),
        summary="{H} was too shy to sing for others until {g} sang along.",
        ask=(
            ("What was {h} afraid of?", "{H} was afraid to sing in front of others."),
            ("Who helped {h}?", "{G} helped {h} by starting to sing along."),
            ("When did {h} sing?", "{H} sang at {event}."),
        ),
        cases=(
            (
                {"event": "the harvest feast"},
                {"event": "the spring fair"},
                {"event": "the midsummer party"},
                {"event": "the lantern festival"},
                {"event": "the winter concert"},
            ),
        ),
        text="""
        <open> {H} loved to sing, but only when {he} was alone. [{He} sang to the flowers and to
        the rain.|{He} sang in the bath and under the blanket.|When nobody was near, {his} voice
        was as clear as a bell.] As soon as somebody came by, {he} [went as quiet as a stone|turned
        red and stopped].

        <morning>, {gintro} [heard {him} by accident|was resting behind a hedge and heard every
        note]. ["What a wonderful voice!" said {g}. "You must sing at {event}."|"Was that you?"
        asked {g}. "Please sing for us at {event}!"] ["Oh no," said {h}. "I could never do
        that."|{H} wanted to sink into the ground. "Everyone would laugh," {he} said.] ["Just think
        about it," said {g}.|"We could practice together," said {g}.] So [every evening they
        practiced by the water|they practiced in secret, a little every day], and {h}'s voice grew
        stronger and stronger.

        Then came {event}. [Lights hung in all the trees.|There were cakes and colored lights.] {H}
        stepped in front of everyone, opened {his} mouth, and [nothing came out|not a sound came
        out]. [The crowd waited.|It was so quiet that you could hear a leaf fall.] {H} [looked for
        the way out|wanted to run away]. Then, from the front row, somebody began to sing. It was
        {g}! [{Ge} sang quite out of tune, but {ge} did not care.|{Gs} voice was scratchy and
        wobbly.] {H} had to smile. [{He} took a breath and joined in.|First {he} hummed, and then
        {he} sang.]

        [{His} voice rose up into the night like a bird.|Soon {his} song filled the air.] When it
        was over, [nobody made a sound. Then they all cheered at once|there was a long silence, and
        then a great cheer]. ["You were wonderful," said {g}. "You were terrible," said {h}, and
        they both laughed.|"I only started it," said {g}. "The rest was you."] [?<glad>] <close>
        """,
        uses_object=False,
    ),
)
