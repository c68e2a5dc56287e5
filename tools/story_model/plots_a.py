"""Plots about things: lost, broken, shared, given, found."""

from __future__ import annotations

from tools.story_model.plot import Plot
from tools.story_model.words import FRAGILE, MADE

PLOTS: tuple[Plot, ...] = (
    Plot(
        key="lost",
        themes=("losing something", "something lost and found", "a lost {ob}", "helping a friend"),
        morals=(
            "a worry grows smaller when you share it",
            "lost things are easier to find when friends look together",
            "it is wise to ask for help",
        ),
        summary="{H} lost {his} {ob}, and with the help of {g} {he} found it again {spot}.",
        ask=(
            ("Where was the {ob}?", "The {ob} was {spot}."),
            ("Why was {h} sad?", "{H} was sad because {his} {ob} was lost."),
            ("Who helped {h}?", "{G} helped {h} look for the {ob}."),
            ("What did {h} lose?", "{H} lost {his} {o}."),
        ),
        cases=(
            (
                {"spot": "in the tall grass", "why": "It must have fallen when I jumped the ditch"},
                {"spot": "under a heap of leaves", "why": "The wind must have blown it there"},
                {"spot": "behind an old wall", "why": "I sat there yesterday to eat my lunch"},
                {"spot": "beside the path", "why": "I stopped there to tie up my bundle"},
                {"spot": "on top of a high shelf", "why": "I put it there to keep it safe"},
                {"spot": "in the roots of an oak tree", "why": "I took a nap there at noon"},
                {"spot": "next to the well", "why": "I put it down there to take a drink"},
            ),
        ),
        text="""
        <open> [?<trait>] [{He} had a(n) {o} that {he} loved more than anything.|{His} greatest
        treasure was a(n) {o}.|{He} owned a(n) {o}, and {he} took it everywhere.] [?<giver>]

        <morning>, [{h} reached for the {ob}, but it was gone|{h} woke up and saw that the {ob} was
        missing|{h} came home and found that the {ob} was not there anymore]. {He} [looked under
        the bed and behind the door|searched every corner|turned the whole house upside down|looked
        high and low], but [the {ob} was nowhere to be seen|it was no use|{he} could not find it].
        [?"Oh no," said {h}. "Where can it be?"] <sad>

        <meet> <wrong> ["I have lost my {o}," said {h}. "I have looked everywhere."|"My {o} is
        gone," {h} answered, "and I do not know where to look."] [{G} thought for a moment. "Let us
        walk back the way you came," {ge} said. "Step by step."|"Two pairs of eyes are better than
        one," said {g}. "I will help you look."|"Close your eyes," said {g}, "and try to remember
        where you saw it last."|"Do not cry," said {g}. "We will look together until we find it."]

        [So off they went.|Together they set out.|They did just that.] They [asked everyone they
        met|looked under every stone|looked left and right|went slowly and looked at everything
        twice]. [?At first they found only [an old button|a rusty nail|a snail who was fast
        asleep|a lost sock].] [Then {g} gave a shout.|Then something caught {h}'s eye.|At last {h}
        stopped and pointed.] There, {spot}, was the {ob}! "{why}," said {h}, and {he}
        [laughed|shook {his} head|blushed a little]. [?<glad>]

        <thanks> [?<together>] <close>
        """,
    ),
    Plot(
        key="share",
        themes=("sharing", "learning to share", "being generous"),
        morals=(
            "joy becomes bigger when it is shared",
            "a thing that is shared is worth twice as much",
            "it is no fun to have everything and be alone",
        ),
        summary="{H} did not want to share {his} {ob} with {g}, and {he} was lonely until {he} did.",
        ask=(
            ("Why was {h} lonely?", "{H} was lonely because {he} would not share {his} {ob}."),
            ("What did {h} learn?", "{H} learned that {moral}."),
            ("What did {h} share?", "{H} shared {his} {o}."),
            ("Who asked to use the {ob}?", "{G} asked for a turn with the {ob}."),
        ),
        text="""
        <open> [?<trait>] {H} had a(n) {o}, [and nobody else had one like it|and {he} was very
        proud of it|the finest for miles around]. [?{He} polished it every evening.]

        <morning>, {gintro} [knocked at the door|came to visit|saw the {ob} and stopped to look].
        ["What a lovely {ob}!" {ge} said. "May I have a turn?"|"Could I try your {ob}?" {ge} asked.
        "Just for a little while."|"Please, may I hold it?" asked {g}.] ["No," said {h}. "It is
        mine, and only mine."|{H} held the {ob} tight. "No," {he} said. "You might break it."|But
        {h} shook {his} head and turned away.] {G} [said nothing and walked away slowly|looked sad
        and went home|hung {gs} head and left].

        [{H} was alone with the {ob} all that day.|Now {h} had the {ob} all to {himself}.] [At
        first {he} was pleased.|For an hour {he} was happy.] But [it was not as much fun as
        before|soon the day felt long and empty|there was nobody to laugh with]. [From far away
        {he} heard others playing.|{He} looked at the {ob}, and it only seemed to look back at
        {him}.] [?<sad>] ["What good is a(n) {ob} with no one to enjoy it with?" {he} thought.|"I
        have my {ob}," {he} thought, "but I do not have a friend."]

        [The next morning {h}|Before the sun went down, {h}|So {h}] [went to find {g}|ran all the
        way to {g}'s door|took the {ob} and looked for {g} everywhere]. "I am sorry," {he} said.
        ["Would you like to have the first turn?"|"Let us use it together."|"The {ob} is more fun
        with you."] {G}'s face [lit up|broke into a smile|shone like the sun]. [They took turns all
        day.|They played until their sides hurt from laughing.|They thought of ten new games before
        lunch.] [?<glad>] <close>
        """,
    ),
    Plot(
        key="broken",
        things=FRAGILE,
        themes=("a broken {ob}", "fixing something", "telling the truth", "an accident"),
        morals=(
            "it is better to tell the truth than to hide a mistake",
            "almost anything can be mended with patience",
            "an honest word is the best glue",
        ),
        summary="{H} broke {g}'s {ob}, told the truth about it, and they mended it together.",
        ask=(
            ("What was broken?", "{G}'s {o} was broken."),
            ("Was {g} angry?", "No. {G} was glad that {h} told the truth."),
            ("How did they fix it?", "They fixed the {ob} {tool}."),
            ("Why did {h} feel bad?", "{H} felt bad because {he} had broken {g}'s {ob}."),
        ),
        cases=(
            (
                {"tool": "with glue and a lot of patience"},
                {"tool": "with string and a drop of paint"},
                {"tool": "with wire and a steady touch"},
                {"tool": "with a bit of wax and ribbon"},
            ),
        ),
        text="""
        <open> [?<trait>] {His} best friend was {gintro}. {G} had a(n) {o} that [had belonged to
        {gs} grandfather|{ge} kept on the highest shelf|{ge} loved very much].

        <morning>, while {g} was [out|making tea|asleep], {h} [picked up the {ob} to have a closer
        look|wanted to see how the {ob} worked|took the {ob} down just for a moment]. [But it
        slipped. Crash!|It was heavier than it looked, and it fell with a crash.|Then there was a
        loud crack.] The {ob} was broken. [{H} turned pale.|{H} stood very still.|{H} wanted to run
        away.] [?"What have I done?" {he} whispered.]

        [{He} pushed the pieces behind the curtain.|{He} thought of hiding the pieces.|For a moment
        {he} thought of saying that the wind had done it.] But [a lie felt even heavier than the
        broken {ob}|{his} stomach hurt at the thought|{he} knew that it would not be right]. So
        {he} [took a deep breath|gathered up the pieces|counted to three] and went to {g}. ["I
        broke your {ob}," {he} said. "It was an accident, and I am very sorry."|"I have to tell you
        something," said {h}. "I broke your {ob}. I am so sorry."]

        {G} [looked at the pieces and was quiet for a while|sighed|was sad at first]. Then {ge}
        [smiled|put the kettle on|patted {h} on the back]. ["It was brave of you to tell me," {ge}
        said. "Come, let us see what we can do."|"Thank you for telling me the truth," {ge} said.
        "A thing can be mended, but trust is harder to mend."] They sat down side by side and
        [worked all afternoon|went to work] {tool}. [When they were done, you could see a thin line
        where the crack had been.|It did not look quite like new.] ["I like it even better now,"
        said {g}. "Now it has a story."|"It is perfect," said {g}, "because we fixed it together."]
        [?<glad>] <close>
        """,
    ),
    Plot(
        key="gift",
        themes=("a gift", "a birthday", "a birthday present", "giving"),
        morals=(
            "the best gifts come from the heart",
            "a gift does not have to cost a thing",
            "it feels even better to give than to get",
        ),
        summary="{H} had no money for {g}'s birthday, so {he} gave {gm} {his} own {ob}.",
        ask=(
            ("What was the gift?", "The gift was a(n) {o}."),
            ("Who got the gift?", "{G} got the gift from {h}."),
            ("Why was {h} worried?", "{H} was worried because {he} had no money for a present."),
        ),
        text="""
        <open> [?<trait>] {His} dearest friend was {gintro}. [Tomorrow was {g}'s birthday|In two
        days it would be {g}'s birthday], and {h} [had not found a present yet|still had no present
        for {gm}].

        <morning>, {h} [went from shop to shop|walked to the market|looked in all the windows].
        There were [silk scarves and silver spoons|sweets in glass jars|clocks and shiny shoes],
        but [everything cost too much|{he} had only one small coin|{his} pockets were empty]. <sad>
        [?"A birthday without a present is like a sky without stars," {he} thought.]

        [On the way home {he} sat down to think.|{He} went home and thought and thought.|That night
        {he} lay awake and thought.] [Then {he} looked at {his} {o}.|Then {his} eyes fell on {his}
        own {o}.] [It was old, but {he} had always taken good care of it.|{G} had always loved
        it.|{G} had often said how lovely it was.] [{H} cleaned it until it shone|{H} wrapped it in
        green leaves|{H} put it in a little box] and [tied it up with a ribbon|wrote a card with
        {his} best letters|painted a tiny heart on it].

        On the birthday, the other guests brought [big boxes with gold paper|fine and costly
        things|presents in bright paper]. {H} [held out {his} small parcel and looked at the
        floor|was almost too shy to give {his} gift]. {G} opened it, and [{gs} eyes grew wide|for a
        moment {ge} could not speak]. ["Your own {ob}!" {ge} said. "This is the best present of
        all."|"You gave me the thing you love," {ge} said softly. "I will keep it forever."]
        [?<glad>] [Then they cut the cake, and {h} got the biggest slice.|Then everyone sang, and
        {h} sang loudest of all.|They danced until the candles burned low.] <close>
        """,
    ),
    Plot(
        key="found",
        themes=("honesty", "being honest", "finding something", "doing the right thing"),
        morals=(
            "honesty is worth more than treasure",
            "doing the right thing makes the heart light",
            "what is not yours will never make you happy",
        ),
        summary="{H} found a(n) {o} and wanted to keep it, but gave it back to {g}.",
        ask=(
            ("Who did the {ob} belong to?", "The {ob} belonged to {g}."),
            ("What did {h} find?", "{H} found a(n) {o}."),
            ("What did {h} do with the {ob}?", "{H} gave the {ob} back to {g}."),
        ),
        text="""
        <open> [?<trait>]

        <morning>, {h} was [on {his} way home|out for a walk|picking berries|on {his} way to the
        well] when {he} [saw something in the grass|almost tripped over something|saw something
        glitter by the path]. It was a(n) {o}! [?{He} turned it over and over.] ["How lovely," said
        {h}. "I have always wanted one."|"Today is my lucky day!" {he} cried.|{H} had never seen
        such a fine one.] [There was nobody around.|{He} looked around, but no one was there.] So
        {he} took it home.

        But [that night {he} could not sleep|the {ob} did not make {him} as happy as {he} had
        hoped|every time {he} looked at it, {he} felt a little worse]. ["Someone must be looking
        for it," {he} thought.|"It must belong to somebody," {he} thought, "and that somebody must
        be sad."] [?{He} pulled the blanket over {his} head, but the thought would not go away.]

        [In the morning|At sunrise|The next day] {h} [went from door to door|asked everyone {he}
        met|put up a sign by the road]. ["Is this yours?" {he} asked again and again.|"Did you lose
        a(n) {ob}?" {he} asked.] [Nobody knew.|Everyone said no.] At last {he} came to the house of
        {gintro}. [{G} was searching the yard with tears in {gs} eyes.|{G} was sitting on the steps
        and looked very sad.] "Is this yours?" asked {h}, and held out the {ob}. ["My {ob}!" cried
        {g}. "I thought it was gone forever."|{G} could hardly believe it. "You found it!" {ge}
        cried.]

        ["You could have kept it," said {g}, "but you brought it back."|"Not everyone would have
        brought it back," said {g}.] [{Ge} invited {h} in for some <food>.|{Ge} gave {h} a big
        slice of cake.] [?<together>] [?That night {h} slept like a log.] <close>
        """,
    ),
    Plot(
        key="make",
        things=MADE,
        themes=("making something", "not giving up", "hard work", "trying again", "an invention"),
        morals=(
            "if you keep on trying, you will get there",
            "every mistake teaches you something",
            "good things take time",
        ),
        summary="{H} wanted to make a(n) {ob}, failed twice, and did it on the third try.",
        ask=(
            ("What did {h} make?", "{H} made a(n) {o}."),
            ("How many times did {h} try?", "{H} tried three times."),
            ("What did {g} say?", "{G} told {h} to try one more time."),
        ),
        text="""
        <open> [?<trait>] More than anything, {he} wanted a(n) {o}. [But nobody {inp} sold such a
        thing|But {he} had no money to buy one]. "Then I will make one myself," said {h}.

        <morning>, {he} set to work. [The first one fell apart in a minute.|The first one looked
        more like a potato.|The first one was so crooked that it made {him} laugh.] [?"Never mind,"
        said {h}.] [The second one was better, but it broke before lunch.|The second one was almost
        right, but only almost.|The second one was far too big and fell over with a thump.] ["I
        will never get it right!" {he} cried, and threw down {his} tools.|{H} kicked a stone across
        the yard. "I give up," {he} said.] [?<sad>]

        {Gintro} [had been watching|looked over the fence|came by with a basket of apples]. ["May I
        tell you a secret?" said {g}. "I burned a hundred loaves before I baked a good one."|"Look
        how much better the second one was," said {g}. "Try one more time."|"Every time you try,
        you learn something," said {g}. "What did you learn today?"] {H} [thought about it|looked
        at the pieces again|was quiet for a moment]. ["I was in too much of a hurry," {he}
        said.|"The bottom was too thin," {he} said slowly.|"I forgot to measure," {he} said.]

        So {h} began again. This time {he} [measured twice|worked slowly and carefully|did not
        hurry], and {g} [kept {him} company|held the pieces in place|hummed a tune beside {him}].
        [When the moon came up|At the end of the day|Just before supper], it was done: a(n) {o},
        [as fine as any in the world|and it was perfect|a little crooked, but strong]. ["I did it!"
        shouted {h}. "I really did it!"|<glad>] [?Soon others came to admire it, and they all
        wanted to know how it was made.] <close>
        """,
    ),
    Plot(
        key="magic",
        themes=("magic", "a magic {ob}", "a wish", "three wishes", "being content"),
        morals=(
            "the best things are the ones you already have",
            "a wish is best when it is made for someone else",
            "no magic is as strong as a kind heart",
        ),
        summary="{H} found a magic {ob} and used the last wish to help {g}.",
        ask=(
            ("What did {h} wish for last?", "{H} wished {wish}."),
            ("What was magic?", "The {ob} was magic."),
            ("How many wishes were there?", "There were three wishes."),
        ),
        cases=(
            (
                {"hurt": "had hurt {gs} foot and could not walk", "wish": "for {g}'s foot to heal"},
                {"hurt": "had lost {gs} home in a storm", "wish": "for a new home for {g}"},
                {
                    "hurt": "had not heard from {gs} family for years",
                    "wish": "for {g} to see {gs} family again",
                },
                {"hurt": "was very ill and lay in bed", "wish": "for {g} to be well again"},
            ),
            (
                {"first": "a mountain of candy", "oops": "a terrible tummy ache"},
                {"first": "a hundred cakes", "oops": "a terrible tummy ache"},
                {"first": "a bag of gold", "oops": "a bag so heavy that {he} could not move it"},
                {"first": "a huge house", "oops": "so many rooms that {he} got lost in them"},
            ),
        ),
        text="""
        <open> [?<trait>] <morning>, {h} [dug in the garden|cleaned out the attic|walked along the
        water] and found a(n) {o}. [It hummed softly.|It was warm to the touch.|It glowed in the
        dark.] ["I am a magic {ob}," it said. "You may have three wishes."|When {he} rubbed it, a
        tiny voice said, "Three wishes are yours."]

        {H} did not think for long. First {he} wished for {first}. [Whoosh! There it was.|And there
        it was, just like that.] But all {he} got from it was {oops}. [?"That was not so clever,"
        {he} said.] [Then {he} wished to be taller than a tree. But up there it was windy, and
        nobody could hear {him}.|Next {he} wished to fly. But it was cold in the clouds, and there
        was nobody to talk to.|Then {he} wished that everything would be blue. But blue soup tasted
        odd, and nobody could find anything.] [By evening everything was as it had been
        before|Luckily, that wish wore off by evening], and only one wish was left.

        [On the way home, {he} passed the house of {gintro}|The next day {he} came to the house of
        {gintro}]. {G} {hurt}. [{H} looked at the {ob} for a long time.|{H} held the {ob} close.]
        [It would be so easy to wish for something for {himself}.|It was the last wish.] Then {he}
        closed {his} eyes and wished {wish}. The {ob} [gave one bright flash and went dark|sang one
        clear note and fell silent].

        ["You gave me your last wish," said {g}. "Why?"|{G} could hardly believe it. "You did that
        for me?"] ["Because it was the only good one," said {h}.|"It is the only wish I do not
        regret," said {h}.] [?<glad>] [?Now it was just an ordinary {ob}, but {h} kept it on the
        shelf.] <close>
        """,
    ),
)
