"""Plots about going somewhere, growing something, and being small in a big world."""

from __future__ import annotations

from tools.story_model.plot import Plot

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="journey",
        themes=("a journey", "an adventure", "a long trip", "a quest", "exploring"),
        morals=(
            "the way is as good as the place it leads to",
            "a long road is short with a friend",
            "you never know what you can do until you set out",
        ),
        summary="{H} went on a long journey to {goal} and took {g} along.",
        ask=(
            ("Where did {h} want to go?", "{H} wanted to go to {goal}."),
            ("Who went with {h}?", "{G} went with {h}."),
            ("What did {h} take along?", "{H} took a(n) {o} along."),
        ),
        cases=(
            (
                {
                    "goal": "the end of the rainbow",
                    "see": "only a quiet valley full of wild flowers",
                },
                {"goal": "the top of the highest peak", "see": "the whole world, small and golden"},
                {
                    "goal": "the place where the river begins",
                    "see": "a tiny spring under a mossy rock",
                },
                {
                    "goal": "the great blue sea",
                    "see": "water and more water, all the way to the sky",
                },
                {
                    "goal": "the oldest tree in the world",
                    "see": "a tree so wide that it had rooms in it",
                },
                {
                    "goal": "the city of bells",
                    "see": "a hundred towers, and all the bells were ringing",
                },
            ),
        ),
        text="""
        <open> [All {his} life {he} had heard about {goal}.|Every night {he} dreamed of {goal}.|An
        old song told of {goal}, and {h} knew every word of it.] ["One day I will see it with my
        own eyes," {he} said.|"You are too small for such a trip," said the others. But {h} only
        smiled.]

        <morning>, {he} packed [a loaf of bread and a blanket|some cheese, a warm coat and a
        candle], and also {his} {o}, for you never know. Then {he} set out. [?<weather>] At [the
        first bend in the road|the old stone bridge|the crossroads] sat {gintro}. ["Where are you
        going?" asked {g}. "To {goal}," said {h}. "May I come along?" "Of course!"|"I have always
        wanted to see {goal}," said {g}. "Then come with me," said {h}.]

        They [crossed a wide river on a raft|walked through a dark wood|climbed over slippery
        rocks]. [On the second day it rained without a break|On the third day they lost the path|At
        night it was cold, and strange sounds came from the dark], and {g} wanted to turn back.
        ["Just one more hill," said {h}. And after it there was one more, and one more.|"Let us
        sing," said {h}, and with a song it was not so bad.|"If we stop now, we will always
        wonder," said {h}.] [Once, the {ob} even saved the day: they traded it for [a ride on a hay
        cart|a bowl of hot stew|two warm beds].|When {h} was tired, {g} carried the {ob}, and when
        {g} was tired, {h} carried {gs} bundle.]

        At last they came to {goal}. There was {see}. [For a long time neither of them spoke.|They
        stood and looked until the light was gone.] ["It is not what I thought," said {h}. "It is
        better."|"I am glad that I did not see it alone," said {h}.|"Was it worth it?" asked {g}.
        "Every step," said {h}.] [?And on the way home they were already planning the next trip.]
        <close>
        """,
    ),
    Plot(
        key="door",
        themes=("a secret door", "a mystery", "a key", "a secret", "a hidden place"),
        morals=(
            "curious eyes find wonders everywhere",
            "a secret is nicer when you can share it",
            "some doors open only when you knock kindly",
        ),
        summary="{H} found a secret door, and behind it {he} found {inside} and {g}.",
        ask=(
            ("What was behind the door?", "Behind the door there was {inside}."),
            ("Where was the door?", "The door was {where}."),
            ("Who lived behind the door?", "{G} lived behind the door."),
        ),
        cases=(
            (
                {"where": "behind a curtain of ivy"},
                {"where": "at the back of the closet"},
                {"where": "between the roots of a huge tree"},
                {"where": "under the stairs"},
                {"where": "at the bottom of the garden"},
                {"where": "behind the old bookshelf"},
            ),
            (
                {
                    "inside": "a garden full of glowing flowers",
                    "job": "watered the flowers every night",
                },
                {"inside": "a room full of clocks", "job": "wound up the clocks every evening"},
                {"inside": "a library of tiny books", "job": "dusted every single book"},
                {
                    "inside": "a hall with a ceiling of stars",
                    "job": "polished the stars one by one",
                },
                {
                    "inside": "a workshop full of toys",
                    "job": "mended broken toys for children far away",
                },
            ),
        ),
        text="""
        <open> [?<trait>] {He} knew every corner of the place, or so {he} thought. <morning>, {h}
        was [looking for {his} {o}|chasing {his} {o}, which had rolled away], when {he} saw a small
        door {where}. [It was no taller than a chair.|It was painted blue, and the paint was
        peeling.|It had a round brass handle.] [?"How strange," said {h}. "That was not here
        yesterday."]

        [{He} pushed and pulled, but it did not move.|{He} turned the handle. It was locked.] [{H}
        looked for a key under the mat, but there was no mat.|{H} looked through the keyhole and
        saw a soft light.] Then {he} [did what {his} grandmother had taught {him}|remembered {his}
        manners]: {he} knocked three times and said, "Please." [Click! The door swung open.|With a
        soft click, the door swung open.]

        Behind it was {inside}. [{H} forgot to breathe.|{H} rubbed {his} eyes.|"Oh!" whispered
        {h}.] [In the middle of it all sat|Out of the shadows stepped] {gintro}. ["Nobody has found
        this place in a hundred years," said {g}.|"You said please," said {g}. "Hardly anyone
        does."|"Come in," said {g}, "and wipe your feet."] {G} {job}. ["It is a lot of work for
        one," {ge} said.|"It is beautiful here, but it can be lonely," {ge} said.] ["I could help
        you," said {h}.|"May I help?" asked {h}.]

        So they worked side by side until evening. When it was time to go, {g} [gave {him} a tiny
        golden key|put a tiny key on a string around {his} neck]. ["Come whenever you like," said
        {g}.|"Now it is your secret too," said {g}.] [{H} ran home with {his} {ob} in one pocket
        and the key in the other.|At home nobody noticed anything, but {h} felt the key and
        smiled.] <close>
        """,
    ),
    Plot(
        key="night",
        themes=("being afraid of the dark", "bedtime", "a night noise", "fear", "the moon"),
        morals=(
            "the dark is not so scary when you know what is in it",
            "most fears become small when you look at them",
            "it helps to talk about what scares you",
        ),
        summary="{H} was afraid of a noise in the night, but it was only {g}.",
        ask=(
            ("What made the noise?", "It was {g}, {gdoing}."),
            ("What was {h} afraid of?", "{H} was afraid of the dark."),
            ("What did {h} take along?", "{H} took {his} {o} along."),
        ),
        cases=(
            (
                {
                    "noise": "Scratch, scratch, scratch",
                    "gdoing": "looking for a warm place to sleep",
                },
                {"noise": "Tap, tap, tap", "gdoing": "knocking on the window for help"},
                {"noise": "Thump, bump, thump", "gdoing": "moving boxes into the house next door"},
                {"noise": "Hoo, hoo, hoo", "gdoing": "crying because {ge} could not sleep"},
                {"noise": "Rustle, rustle", "gdoing": "looking for {gs} lost cap"},
            ),
        ),
        text="""
        <open> By day {h} was [as bold as a lion|afraid of nothing], but when the sun went down,
        {he} was afraid of the dark. [Every shadow looked like a monster.|{He} slept with the
        blanket over {his} head.|{He} always asked for one more story, and then for one more.]

        One night {he} woke up. [The moon was hidden, and the room was black.|It was as dark as the
        inside of a boot.] {noise}! There was a noise outside. {H} [held {his} breath|sat straight
        up in bed|pulled the blanket up to {his} nose]. {noise}! There it was again. ["It is only
        the wind," {he} told {himself}. But the wind does not sound like that.|"Go away," {he}
        whispered, but it did not go away.]

        [{H} could stay in bed and be afraid all night, or {he} could go and look.|"If I do not
        look, I will never sleep again," {he} thought.] So {he} lit a candle, took {his} {o} along
        for courage, and tiptoed to the door. [The floor creaked.|Each step took an hour.] One,
        two, three! {He} opened it. There stood {gintro}, {gdoing}. ["Oh! You scared me!" cried
        {g}. "I scared you?" said {h}. "You scared me!"|"Please do not be angry," said {g}. "I did
        not mean to wake anyone."] They looked at each other, and then they both [began to
        laugh|had to laugh].

        {H} [warmed some milk for them both|made two cups of cocoa], and they sat on the doorstep.
        ["I do not like the dark," said {h}. "Look up," said {g}.|"Are you never afraid at night?"
        asked {h}. "I was, until I learned to look up," said {g}.] The clouds had moved on, and
        [there were more stars than {h} had ever seen|the sky was full of stars]. ["Without the
        dark, we could not see them," said {g}.|"They only come out when it is dark," said {g}.]
        [That night {h} blew out the candle {himself}.|After that {h} slept without a light.]
        <close>
        """,
    ),
    Plot(
        key="bake",
        themes=("baking", "a cake", "cooking", "a party", "working together", "a feast"),
        morals=(
            "a mistake can turn into something wonderful",
            "many helpers make light work",
            "things taste best when you make them together",
        ),
        summary="{H} wanted to bake {cake}, and a mistake by {g} made it better.",
        ask=(
            ("What did {h} bake?", "{H} baked {cake}."),
            ("What went wrong?", "{G} put in {oops} by mistake."),
            ("Did they like it?", "Yes, everyone loved it."),
        ),
        cases=(
            (
                {"cake": "a plum cake", "it": "cake"},
                {"cake": "a tall birthday cake", "it": "cake"},
                {"cake": "a big pumpkin pie", "it": "pie"},
                {"cake": "an apple pie", "it": "pie"},
                {"cake": "a loaf of sweet bread", "it": "bread"},
            ),
            (
                {"oops": "ginger instead of sugar"},
                {"oops": "pepper instead of cinnamon"},
                {"oops": "a whole jar of honey"},
                {"oops": "three lemons instead of three eggs"},
            ),
            (
                {"feast": "the summer feast"},
                {"feast": "the queen's visit"},
                {"feast": "{his} grandmother's birthday"},
                {"feast": "the village fair"},
            ),
        ),
        text="""
        <open> [?<trait>] {He} wanted to bake {cake} for {feast}. ["It must be the best one ever,"
        {he} said.|It had to be perfect.|{He} had thought of nothing else for weeks.]

        <morning>, {h} tied on an apron and got out the big bowl. [There was flour on the table, on
        the floor and on {his} nose.|Soon there was flour everywhere.] {Gintro} [looked in at the
        door|smelled the butter and came in]. "May I help?" asked {g}. {H} [was not sure, but {he}
        said yes|thought about it and nodded]. [{G} stirred, and {h} measured.|They stirred and
        sang, and sang and stirred.] But {g}, who could not read the labels very well, put in
        {oops}!

        {H} tasted the batter and [made a face|turned red]. ["What have you done?" {he} cried. "It
        is ruined!"|"Oh, {g}!" {he} said. "Now it is spoiled."] {G} [looked at the floor. "I only
        wanted to help," {ge} said|hung {gs} head and said, "I am so sorry"]. [{H} saw how sad {ge}
        was, and {his} anger melted like butter.|{H} was cross for a moment, but then {he} was
        ashamed of it.] ["It is only a {it}," {he} said. "Let us bake it anyway and see."|"There is
        no time to start again," {he} said. "In it goes!"]

        [When they opened the oven, a wonderful smell filled the air.|Out of the oven came the
        oddest {it} you ever saw, but what a smell!] At {feast}, [the first guest took a careful
        bite|everyone took a small piece to be polite]. Then [there was silence. Then everybody
        asked for more|all the plates came back for more]! ["What is your secret?" they asked.|"I
        have never tasted anything like it!" someone cried.] {H} [winked at|put an arm
        around|smiled at] {g}. ["My secret is my helper," {he} said.|"The secret is a good friend,"
        {he} said.] <close>
        """,
        uses_object=False,
    ),
    Plot(
        key="garden",
        themes=("a garden", "patience", "growing something", "a seed", "waiting", "nature"),
        morals=(
            "good things need time to grow",
            "patience waters every seed",
            "what you care for will grow",
        ),
        summary="{H} planted a seed, almost gave up on it, and learned patience from {g}.",
        ask=(
            ("What did {h} plant?", "{H} planted a seed."),
            ("What grew in the garden?", "{plant} grew there."),
            ("Who taught {h} to wait?", "{G} taught {h} to wait."),
        ),
        cases=(
            (
                {"plant": "A huge sunflower", "use": "so tall that it looked over the roof"},
                {"plant": "A pumpkin vine", "use": "with a pumpkin as big as a cart"},
                {"plant": "A little apple tree", "use": "with white blossoms all over it"},
                {"plant": "A rose bush", "use": "with a hundred red roses"},
                {"plant": "A climbing bean", "use": "with leaves as green as emeralds"},
            ),
        ),
        text="""
        <open> [?<trait>] <morning>, [the wind dropped a little seed at {his} door|{h} found a
        little brown seed in {his} pocket|an old trader gave {him} a little seed]. {H} dug a hole,
        put the seed in and poured some water on it. Then {he} sat down beside it to wait.

        [After an hour nothing had happened.|{He} waited all morning, but nothing happened.]
        ["Hurry up!" {he} told the seed.|"Grow!" {he} shouted, but the seed did not grow.] [On the
        second day {he} sang to it, and on the third day {he} dug it up to see how it was
        doing.|{He} looked every hour, and once {he} even dug it up to have a look.] [After a week
        {he} had had enough.|Days went by, and there was only brown earth.] ["It is a bad seed,"
        said {h}.|"It will never grow," said {h}, and {he} threw down the watering can.]

        {Gintro}, who lived close by, leaned over the gate. ["What are you growing?" asked {g}.
        "Nothing at all," said {h}.|"You look cross," said {g}. "My seed will not grow," said {h}.]
        ["Oh, but it is growing," said {g}. "You just cannot see it yet."|"A seed works in the
        dark," said {g}, "where nobody can watch. You must give it water and leave it alone."]
        ["How long will it take?" asked {h}. "As long as it takes," said {g}.|"Come and have some
        tea," said {g}. "Waiting is easier for two."]

        So every morning {h} watered the earth, and then {he} [went to drink tea with {g}|helped
        {g} with {gs} beans]. [It rained, and the sun shone, and it rained again.|Spring turned
        slowly into summer.] And then, one day, there it was: a tiny green tip! {H} [ran to get
        {g}|shouted for joy]. [It grew and grew.|From then on you could almost watch it grow.] By
        the end of summer it was there for all to see: {plantlow}, {use}. [Everyone {inp} came to
        look.|<glad>] ["Was it worth the wait?" asked {g}. {H} smiled. "What wait?" {he} said.|"We
        did it," said {h}. "The seed did it," said {g}, "but you let it."] <close>
        """,
        uses_object=False,
    ),
)
