"""Short plots, for those who ask for a short story."""

from __future__ import annotations

from tools.story_model.plot import Plot
from tools.story_model.words import LIGHT

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="hat",
        things=LIGHT,
        themes=("the wind", "a windy day", "a chase", "a lost {ob}", "losing something"),
        morals=(
            "a little bad luck can bring a new friend",
            "you never know whom the wind will bring",
            "what you lose can lead you to something better",
        ),
        summary="The wind blew {h}'s {ob} away, and that is how {he} met {g}.",
        ask=(
            ("What did the wind take?", "The wind took {h}'s {o}."),
            ("Where did the {ob} land?", "It landed at {g}'s feet."),
        ),
        text="""
        <open> <morning>, {he} was out with {his} {o} when a great gust of wind came and [took it
        away|snatched it|carried it off]. [Up it went, over the roofs.|It rolled and tumbled and
        would not stop.] "Stop! Come back!" cried {h}, and ran after it, [past the well|over the
        bridge|through a flock of geese] and [down the hill|across a muddy field|all around the
        church].

        [At last the wind grew tired|Then, all of a sudden, the wind let go], and the {ob} landed
        right at the feet of {gintro}. ["Is this yours?" asked {g}. "It came down from the sky."|"I
        was just wishing for something to happen," said {g}, "and look what fell from the sky!"]
        {H} was so out of breath that {he} could only nod. ["Sit down," said {g}. "I was about to
        have some <food>."|{G} laughed and gave {him} a glass of cool water.]

        [They talked until the moon came up.|They liked each other at once.] [?"I am glad that it
        was windy today," said {h}.] <close>
        """,
        short=True,
    ),
    Plot(
        key="hiccup",
        themes=("hiccups", "something funny", "being silly", "laughing", "a funny problem"),
        morals=(
            "laughing is the best medicine",
            "some troubles go away when you stop thinking about them",
            "a good laugh is worth more than a clever plan",
        ),
        summary="{H} had the hiccups, and nothing helped until {g} made {him} laugh.",
        ask=(
            ("What was wrong with {h}?", "{H} had the hiccups."),
            ("How did the hiccups go away?", "{G} made {h} laugh, and the hiccups were gone."),
        ),
        text="""
        <open> <morning>, {he} woke up with the hiccups. Hic! [The spoon flew out of {his}
        soup.|The cups rattled on the shelf.] Hic! [{He} could not say good morning without
        jumping.|"Good mor-hic-ning," {he} said to the postman.] {He} [held {his} breath and
        counted to ten|drank a glass of water upside down|stood on {his} head], but it did not
        help. Hic!

        "What you need is a good scare," said {gintro}. {G} [hid behind a door and shouted
        "Boo!"|put on a sheet and moaned like a ghost]. But {ge} [tripped over {gs} own feet and
        landed in the flour|got tangled up and fell into the washtub]. [{G} sat there, white from
        head to toe.|Out came {g} with a sock on {gs} nose.] {H} laughed and laughed until {his}
        sides hurt. Then {he} stopped. {He} waited. No hic! "They are gone!" {he} cried.

        ["I knew that my plan would work," said {g}. Then {ge} opened {gs} mouth and said,
        "Hic!"|"Just as I had planned it," said {g}, and {ge} wiped {gs} face.] <close>
        """,
        uses_object=False,
        short=True,
    ),
    Plot(
        key="rainbow",
        themes=("rain", "a rainbow", "a rainy day", "the colors", "boredom", "puddles"),
        morals=(
            "there is no bad weather when you have good company",
            "after the rain comes the sun",
            "fun is where you make it",
        ),
        summary="It rained all day, but {g} showed {h} how much fun the rain can be.",
        ask=(
            ("What was the weather like?", "It rained all day, and then there was a rainbow."),
            ("What did they do in the rain?", "{H} and {g} {fun}."),
        ),
        cases=(
            (
                {"fun": "jumped from puddle to puddle"},
                {"fun": "sailed boats made of bark"},
                {"fun": "danced under the drops"},
                {"fun": "built a dam out of mud"},
            ),
        ),
        text="""
        <open> It had been raining for three days. {H} [sat at the window and watched the
        drops|counted the drops on the window] and sighed. ["There is nothing to do," {he} said.|"I wish the sun would come out," {he} said.]

        Then there was a knock. Outside stood {gintro}, [as wet as a fish and laughing|wet all over
        and very merry]. ["Come out!" said {g}. "The puddles are at their best."|"What are you
        doing in there?" asked {g}. "You are missing everything!"] ["But it is raining," said {h}.
        "Exactly!" said {g}.|{H} was not so sure, but {he} put on {his} boots.] They {fun}, and
        [soon {h} was soaked and had never been so happy|{h} laughed so hard that {he} got rain in
        {his} mouth].

        [Just when they were too tired to go on, the sun came out.|In the evening the clouds broke
        open.] Over the hills stood a rainbow, [bright from end to end|with all its colors]. ["You
        only get one of those if it rains," said {g}.|"That was worth waiting for," said {h}.]
        <close>
        """,
        uses_object=False,
        short=True,
    ),
    Plot(
        key="sleep",
        themes=("not being able to sleep", "going to sleep", "bedtime", "sleep", "good night"),
        morals=(
            "sleep comes when you stop chasing it",
            "a kind voice is the softest pillow",
            "everyone needs a little company sometimes",
        ),
        summary="{H} could not sleep until {g} {lull}.",
        ask=(
            ("Why was {h} awake?", "{H} could not fall asleep."),
            ("What did {g} do?", "{G} {lull}."),
        ),
        cases=(
            (
                {"lull": "sang a soft song", "end": "the last note"},
                {"lull": "told a long, slow story", "end": "the last word"},
                {"lull": "counted the stars out loud", "end": "the hundredth star"},
                {"lull": "named all the flowers in the meadow", "end": "the last daisy"},
            ),
        ),
        text="""
        <open> One night {he} could not sleep. {He} [turned to the left and turned to the
        right|fluffed up the pillow and smoothed the blanket]. {He} counted sheep, [but the sheep
        kept wandering off|but one of them got stuck on the fence]. {He} drank a cup of warm milk.
        It was no use. [The moon looked in at the window, round and wide awake.|The clock struck
        ten, and then eleven.]

        So {h} went outside, and there sat {gintro}, [looking at the sky|wrapped in a blanket].
        ["Can't you sleep either?" asked {g}.|"You too?" asked {g}, and moved over to make room.]
        ["My head is too full," said {h}.|"I am trying as hard as I can," said {h}.] ["Then do not
        try at all," said {g}. "Just listen."|"Lean back and close your eyes," said {g}.] And {g}
        {lull}, very quietly. [The wind grew still.|The crickets grew silent, one by one.]

        Long before {end}, {h} was fast asleep, and {g} [covered {him} with the blanket|smiled and
        yawned]. [?In the morning, they were both still there, and the sun was shining on them.]
        [?<moral>] Good night.
        """,
        uses_object=False,
        short=True,
    ),
    Plot(
        key="swap",
        themes=("trading", "a trade", "being content", "wanting something else", "envy"),
        morals=(
            "it is good to like what you have",
            "what others have is not always better",
            "friends can both win when they trade fairly",
        ),
        summary="{H} traded {his} {ob} away and then missed it, but {g} gave it back.",
        ask=(
            ("What did {h} trade away?", "{H} traded away {his} {o}."),
            ("What did {h} get for it?", "{H} got {other} for it."),
        ),
        cases=(
            (
                {"other": "a whistle that was much too loud", "it": "whistle"},
                {"other": "a mirror that made everyone look cross", "it": "mirror"},
                {"other": "a chair with three and a half legs", "it": "chair"},
                {"other": "a clock that went backward", "it": "clock"},
            ),
        ),
        text="""
        <open> {H} had a(n) {o}, but {he} [was tired of it|wanted something new]. <morning>, {he}
        met {gintro}, who had a {it}. ["Would you like to trade?" asked {h}.|"I will give you my
        {ob} for that {it}," said {h}.] "With pleasure," said {g}, and so they did.

        At home {h} found out that it was {other}. [{He} tried to like it, but it was hard.|At
        first {he} laughed, and then {he} did not.] {He} began to miss the {ob}. [How well it had
        fit into {his} life!|How could {he} have thought that it was boring?] ["I made a
        bad trade," {he} sighed.|That night {he} even dreamed of it.]

        The next day there was a knock on the door. It was {g}, with the {ob}. ["I miss my {it},"
        {ge} said. "It is odd, but it is mine."|"It is a fine {ob}," said {g}, "but I can see that
        it belongs to you."] So they traded back, [and both of them were happier than before|and
        then they laughed about it over some <food>]. <close>
        """,
        short=True,
    ),
    Plot(
        key="echo",
        themes=("being kind", "an echo", "good manners", "friendly words", "being angry"),
        morals=(
            "the world gives back what you give to it",
            "kind words come back to you",
            "a smile is the best way to say hello",
        ),
        summary="{H} shouted at the echo until {g} told {him} to try kind words.",
        ask=(
            ("Who answered {h}?", "It was only the echo."),
            ("What did {g} tell {h}?", "{G} told {h} to say something kind."),
        ),
        text="""
        <open> <morning>, {h} [walked to the foot of a high cliff|climbed up to the edge of a
        canyon] and called, "Hello!" "Hello!" a voice called back. "Who are you?" shouted {h}. "Who
        are you?" the voice shouted. [{H} did not like that.|That made {h} cross.] "Stop it!" {he}
        yelled. "Stop it!" yelled the voice. "You are silly!" "You are silly!" [{H} stamped {his}
        foot.|{H} was so angry that {he} almost cried.]

        {Gintro} was [sitting on a rock nearby|mending a fence nearby] and had heard it all. "There
        is somebody very rude over there," said {h}. {G} [smiled|hid a smile]. ["Try saying
        something kind," said {g}, "and see what happens."|"I know that fellow," said {g}. "He is
        as nice as you are. Try it."] {H} thought for a while. Then {he} called, "I am sorry!" "I
        am sorry!" came the answer. "Will you be my friend?" "Be my friend!"

        [{H}'s eyes grew wide. Then {he} began to laugh, and far away the voice laughed too.|{H}
        had to laugh, and the whole cliff laughed with {him}.] [?<together>] <close>
        """,
        uses_object=False,
        short=True,
    ),
    Plot(
        key="snow",
        themes=("snow", "the first snow", "a snowball", "playing outside", "winter fun"),
        morals=(
            "things that do not last can still be wonderful",
            "the best games need two",
            "a happy day stays with you",
        ),
        summary="{H} and {g} built {built} out of snow, and when it melted they had a plan.",
        ask=(
            ("What did they build?", "They built {built} out of snow."),
            ("What happened in the end?", "It melted, but {h} and {g} were not sad."),
        ),
        cases=(
            (
                {"built": "a castle"},
                {"built": "an enormous cat"},
                {"built": "a ship with a mast"},
                {"built": "a giant with a carrot nose"},
                {"built": "a small house with a door"},
            ),
        ),
        text="""
        <open> One morning {he} woke up and everything was white. [It had snowed all night!|The
        first snow had come!] {H} [ran outside without {his} hat|jumped out of bed] and almost
        bumped into {gintro}. "Look at all this snow!" cried {g}. "What shall we build?"

        They built {built}. [They rolled and pushed and patted until the sun went down.|It took all
        day, and their noses turned red.] [{G} put {gs} own scarf on it.|When it was done, they
        walked around it three times and were very proud.] [Everyone who came by had to stop and
        look.|"It is the best in the world," said {h}.]

        But then the warm wind came, and every day it was a little smaller. [In the end there was
        only a puddle.|One morning it was gone.] ["Are you sad?" asked {h}. "A little," said {g}.
        "But the snow will come back, and so will I."|"It is gone," said {h}. "Then next year we
        will build a bigger one," said {g}.] <close>
        """,
        uses_object=False,
        short=True,
    ),
    Plot(
        key="picnic",
        themes=("a picnic", "a surprise", "forgetting something", "food", "a nice day"),
        morals=(
            "a good friend is better than a full basket",
            "a surprise can be better than a plan",
            "there is always enough when you share",
        ),
        summary="{H} and {g} went on a picnic, and both of them had forgotten the food.",
        ask=(
            ("What did they forget?", "They forgot the food."),
            ("What did they eat?", "They ate {eat}."),
        ),
        cases=(
            (
                {"eat": "wild strawberries"},
                {"eat": "sweet blackberries"},
                {"eat": "ripe yellow plums"},
                {"eat": "hazelnuts and apples"},
                {"eat": "cherries from an old tree"},
            ),
        ),
        text="""
        <open> <morning>, {h} and {his} friend, {gintro}, went on a picnic. [?<weather>] {H}
        carried {his} {o}, and {g} carried a big blanket. They walked [for an hour|over three
        hills] until they found the perfect spot. ["I am so hungry," said {h}. "Where is the
        basket?"|They spread out the blanket and sat down. "Now we eat!" said {h}.] ["I thought
        that you had it," said {g}.|"You have the basket, don't you?" said {g}.] They looked at
        each other. There was a(n) {ob}, and there was a blanket, but there was nothing to eat!

        [{H} wanted to be angry, but then {g} began to giggle.|For a moment they were both quite
        sad. Then they burst out laughing.] ["Let us see what we can find," said {g}.|"Somebody
        must have set a table for us," said {h}.] Behind the very next bush they found {eat}, [more
        than they could eat|as many as anyone could wish for]. [Their fingers were sticky, and they
        did not care.|They ate until they could not eat any more.]

        [On the way home they were already planning the next one.|"Next time," said {h}, "let us
        forget the basket again."] <close>
        """,
        short=True,
    ),
    Plot(
        key="helpme",
        themes=("asking for help", "being proud", "a heavy load", "teamwork", "being strong"),
        morals=(
            "it is not weak to ask for help",
            "what is too heavy for one is easy for two",
            "being strong also means knowing when to ask",
        ),
        summary="{H} wanted to move {load} alone, but it only worked with {g}.",
        ask=(
            ("What did {h} want to move?", "{H} wanted to move {load}."),
            ("Who helped {h}?", "{G} helped {h}."),
        ),
        cases=(
            (
                {"load": "a huge pumpkin"},
                {"load": "a big sack of flour"},
                {"load": "a heavy wooden table"},
                {"load": "a boat full of sand"},
                {"load": "a great round cheese"},
                {"load": "a stubborn old cart"},
            ),
        ),
        text="""
        <open> <morning>, {he} had to bring {load} home. ["I can do it all by myself," said {h}.|"I
        do not need any help," said {h}.] {He} pushed. {He} pulled. {He} [pushed from the other
        side|tried with a stick|counted to three and tried again]. It did not move an inch.
        {Gintro} came by. "Shall I help you?" asked {g}. "No, thank you," said {h}. [{His} face was
        as red as a beet.|And {he} pushed until {his} knees shook.]

        An hour later {g} came by again, and {h} [was sitting on the ground|had not moved at all].
        [?<sad>] ["Are you sure that you do not need help?" asked {g}.|{G} did not say anything.
        {Ge} only sat down beside {him}.] {H} [looked at {his} feet|was quiet for a moment].
        "Maybe," {he} said, "a little." ["I thought you would never ask," said {g}.|"Good," said
        {g}. "On three!"] One, two, three! They pushed together, and off it went, [as if it weighed
        nothing at all|as easy as you please].

        [?<thanks>] [?<together>] <close>
        """,
        uses_object=False,
        short=True,
    ),
)
