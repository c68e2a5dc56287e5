"""Plots about comfort, welcome and being needed."""

from __future__ import annotations

from tools.story_model.plot import Plot

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="laugh",
        themes=("a sad king", "making someone laugh", "cheering someone up", "sadness", "joy"),
        morals=(
            "you cannot buy a laugh",
            "sometimes it is enough to sit beside someone who is sad",
            "a kind heart can do what gold cannot",
        ),
        summary="{G} had forgotten how to laugh until {h} came along.",
        ask=(
            ("Why was {g} sad?", "{G} was sad because {ge} missed {gs} {lost}."),
            ("How did {h} help {g}?", "{H} sat down beside {g} and listened."),
            ("What made {g} laugh?", "{G} laughed when {h} {slip}."),
        ),
        cases=(
            (
                {"lost": "old dog"},
                {"lost": "best friend"},
                {"lost": "mother"},
                {"lost": "home by the sea"},
                {"lost": "brother"},
            ),
            (
                {"slip": "sat down on a cream pie"},
                {"slip": "sneezed so hard that {his} hat flew off"},
                {"slip": "tried to bow and fell over"},
                {"slip": "got {his} head stuck in a bucket"},
            ),
        ),
        text="""
        <open> Not far away lived {gintro}, who had not laughed for a year. [Jugglers came, and
        clowns, and a bear on a bicycle.|People told {gm} jokes and tickled {gm} with feathers.]
        Nothing helped. [{G} only sighed and looked out of the window.|{G} said, "Thank you," and
        sighed.] ["I will give a bag of gold to anyone who can make {g} laugh," said the mayor.|In
        the end the mayor promised a big reward.]

        {H} did not know any jokes, but {he} [felt sorry for {g}|knew what it was like to be sad].
        <morning>, {he} went there with {his} {o} and some <food>. ["Have you come to make me
        laugh?" asked {g}. "No," said {h}. "I have only come to sit with you."|"Let me guess," said
        {g}. "You know a joke." "Not a single one," said {h}.] So they sat. [For a long time they
        said nothing.|The clock ticked.] Then {g} began to talk. {Ge} told {h} how much {ge} missed
        {gs} {lost}. {H} listened, [and did not say a word until {g} was done|and sometimes {he}
        nodded]. ["Tell me more," {he} said.|"What was the best day?" {he} asked.] And {g} told
        {him}.

        [When it got late,|At last] {h} stood up to go, and {he} {slip}. {G} stared. The corner of
        {gs} mouth began to twitch. And then {ge} laughed! [{Ge} laughed until {gs} chair shook.|It
        was a rusty laugh at first, and then it was a big one.] [{H} laughed too.|"I am so sorry,"
        said {g}, and laughed some more.] The mayor came running with the gold, but {h} shook {his}
        head. ["I did nothing," {he} said.|"Buy everyone some cake," {he} said.] ["You did," said
        {g}. "You stayed."|"You will come again, won't you?" asked {g}. "Tomorrow," said {h}, and
        left {g} the {ob} to remember {him} by.] <close>
        """,
    ),
    Plot(
        key="newcomer",
        themes=("the first day of school", "being new", "moving to a new place", "a newcomer"),
        morals=(
            "every friend was a stranger once",
            "it is easy to make someone feel welcome",
            "a new place needs only one friendly face to become home",
        ),
        summary="{G} was new and afraid, and {h} made {gm} feel welcome with a(n) {ob}.",
        ask=(
            ("Who was new?", "{G} was new."),
            ("What did {h} give {g}?", "{H} gave {g} a(n) {o}."),
            ("Why was {g} sad?", "{G} was sad because {ge} was new and missed {gs} old home."),
        ),
        text="""
        <open> [?<trait>] <morning>, a cart came rolling down the road, full of boxes and chairs.
        On top of it all sat {gintro}. [{G} did not wave.|{G} looked as if {ge} wanted to be
        somewhere else.] ["They talk in a funny way," said one of the neighbors.|"They are not from
        here," the others whispered.] And they all went back to work.

        {H} [watched from the window|could not stop thinking about it]. [{He} remembered how it was
        when {he} was new {himself}.|"It must be hard to leave everything behind," {he} thought.]
        The new one sat on the steps all day and [drew circles in the dust|held an old photograph].
        "What could I do?" {h} wondered. [{He} did not have much.|{He} looked around {his}
        room.] Then {he} took {his} {o} and went across the road.

        "Hello," said {h}. "I am {h}." There was no answer. [So {he} sat down on the steps too.|{H}
        almost went home again.] ["At home I had a garden," {g} said after a while. "And
        friends."|"I do not know anybody here," whispered {g}.] ["You know me," said {h}.|"Now you
        know one," said {h}.] {He} held out the {ob}. ["This is for you," {he} said. "Everyone who
        is new should get something."|"It is a welcome present," {he} said.] {G} looked at it, and
        for the first time that day {ge} smiled.

        [{H} showed {gm} where the best berries grew and which dog was friendly.|Together they went
        from door to door, and {h} told {gm} all the names.] [By the end of the week {g} knew
        everyone.|A week later {g} was in the middle of every game.] And when, a year later,
        another cart came rolling down the road, {g} was the first to [run out and wave|say hello].
        <close>
        """,
    ),
    Plot(
        key="light",
        themes=("a lighthouse", "staying awake", "a boat at night", "being responsible", "the sea"),
        morals=(
            "one small light can show many the way",
            "being needed makes you strong",
            "it is good to do your part, even when nobody sees it",
        ),
        summary="{H} kept a light burning all night, and it saved {g}.",
        ask=(
            ("What did {h} do all night?", "{H} kept a light burning."),
            ("Who was saved?", "{G} was saved by the light."),
            ("What went wrong with the lamp?", "In the night {trouble}."),
        ),
        cases=(
            (
                {"trouble": "the oil ran out", "fix": "burned {his} old chair, piece by piece"},
                {
                    "trouble": "the glass broke",
                    "fix": "stood in front of the flame to keep the wind away",
                },
                {
                    "trouble": "the wick was wet",
                    "fix": "tore a strip from {his} best shirt for a new wick",
                },
                {
                    "trouble": "the wind blew it out",
                    "fix": "lit it again and again, a hundred times",
                },
            ),
        ),
        text="""
        <open> {H} had only one job: each night {he} lit a lamp and put it in the highest window.
        [It was a small job, and the others smiled at it.|"Nobody ever comes this way at night,"
        the others said. "Why do you bother?"] ["You never know," said {h}.|"But what if someone
        does?" said {h}.] [?<trait>]

        One night the fog came in, [as thick as wool|so thick that {he} could not see the fence],
        and in the middle of the night {trouble}. {H} [was tired, and the bed was warm|could hear
        {his} bed calling]. ["Just this once it will not matter," {he} thought.|"Who would be out
        on such a night?" {he} thought.] But [something would not let {him} rest|{he} could not
        sleep]. {He} got up and {fix}. [{His} eyes burned, and {his} arms grew heavy.|{He} pinched
        {himself} to stay awake.] [?The hours crept by as slowly as snails.]

        When the morning came, there was a knock. It was {gintro}, [tired and wet|pale and cold],
        with a whole family behind {gm}. ["Are you the one with the light?" asked {g}.|"Was it your
        lamp?" asked {g}.] {H} nodded. ["We were lost in the fog," said {g}. "We had given up all
        hope, and then we saw it."|"Without it we would have gone over the cliff," said {g}.] [The
        smallest of them gave {h} a flower.|They all hugged {him} at once.] {H} [did not know what
        to say|turned red up to {his} ears]. ["It is only a small lamp," {he} said. "It was
        enough," said {g}.|"It was nothing," {he} said. "It was everything," said {g}.] [?The
        others never smiled at {his} job again.] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="robot",
        themes=("feelings", "an old machine", "being useful", "growing old", "something forgotten"),
        morals=(
            "nothing is useless as long as someone cares about it",
            "everyone has something to give",
            "love makes old things new",
        ),
        summary="Nobody wanted {g} any more until {h} found out that {ge} could {gift}.",
        ask=(
            ("What could {g} do?", "{G} could {gift}."),
            ("Where did {h} find {g}?", "{H} found {g} {spot}."),
            ("Why was {g} sad?", "{G} was sad because nobody needed {gm} any more."),
        ),
        cases=(
            (
                {"spot": "in a dusty corner of the attic"},
                {"spot": "behind the old barn"},
                {"spot": "on a bench in the rain"},
                {"spot": "in a shed full of cobwebs"},
            ),
            (
                {"gift": "tell the most wonderful stories", "crowd": "listen"},
                {"gift": "play the harmonica", "crowd": "dance"},
                {"gift": "fold birds out of paper", "crowd": "learn it"},
                {"gift": "remember every song there ever was", "crowd": "sing along"},
            ),
        ),
        text="""
        <open> [?<trait>] <morning>, {h} was looking for {his} {o} when {he} found {gplain}, {spot}. ["Excuse me," said {h}. "What are you doing here?"|"Oh!" said {h}. "I did not know
        that anyone was here."] ["I am waiting," said {g}. "What for?" "I have forgotten," said
        {g}.|"I used to be needed," said {g}. "Now I just sit here."] [{Ge} looked very tired.|There was dust on {gs} shoulders.]

        ["You cannot stay here," said {h}. "You will catch cold."|"Come home with me," said {h}.]
        ["But I am old," said {g}. "I am slow, and I creak when I walk."|"What would you want with
        me?" asked {g}. "I am no use to anyone."] ["I creak too, when I am hungry," said {h}.|"You
        could help me find my {ob}," said {h}.] So {g} came along. [{H} gave {gm} a cup of tea and
        a warm blanket.|{H} brushed off the dust and gave {gm} the chair by the stove.] They found
        the {ob} too: it had been under the chair all along.

        That evening [the lights went out|the rain beat on the roof], and there was nothing to do.
        Then {g} cleared {gs} throat. It turned out that {ge} could {gift}! {H} [forgot the
        time|could not get enough of it]. ["That was wonderful!" {he} cried. "Why did you never say
        so?"|"Again!" {he} begged. "Please, again!"] ["Nobody ever asked," said {g}.|"It has been
        so long," said {g}, and {gs} eyes were shining.] The next night the neighbors came to
        {crowd}, and the night after that the room was full. [Nobody ever called {g} useless
        again.|And {g} was never dusty again.] <close>
        """,
    ),
)
