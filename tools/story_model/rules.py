"""Sentences and phrases that many stories share."""

from __future__ import annotations

from tools.story_model.template import entries

RULES: dict[str, tuple[str, ...]] = {
    "open": entries("""
Once upon a time, {in}, there lived {intro}. / Once upon a time there was {intro} who lived {in}.
Once there was {intro} who lived {in}. / There was {intro} who lived {in}, where <calm>.
In the days when your grandmother was young, {intro} lived {in}.
Have you heard of {h}? {He} was {intro_as}, and {he} lived {in}.
One year, {intro} came to live {in}. / Many years ago there was {intro} who lived {in}.
{Intro} lived {in}. / {In}, there lived {intro}. / Long ago, {in}, there lived {intro}.
Not so long ago, {intro} lived {in}. / Far away, {in}, lived {intro}.
There once was {intro}, and {his} home was {in}. / This is the story of {intro} who lived {in}.
A long time ago, {intro} lived {in}. / If you had been {in} that year, you would have met {intro}.
Somewhere {in}, where <calm>, lived {intro}.
"""),
    "calm": entries("""
there was always something to see / everybody knew everybody / the air was sweet
the days were long and quiet / every day was full of small wonders / no two days were the same
the evenings were warm and slow
"""),
    "trait": entries("""
{He} loved [to sing|to watch the stars|to collect smooth stones|to ask questions|to tell
    jokes|to listen to the rain|long walks|warm soup|quiet mornings|a good puzzle].
Every morning {he} [opened the window and said hello to the sun|hummed the same happy tune|took
    a long walk before breakfast|drank a cup of sweet tea|counted the clouds].
{He} was [kind to everyone {he} met|never in a hurry|always busy with something|full of
    questions|known for {his} bright smile|the sort of {hk} who noticed small things].
{He} did not have much, but {he} [was happy|shared what {he} had|never complained].
Everybody {inp} knew {him} by name. / People said that no one {inp} had a bigger heart.
"""),
    "morning": entries("""
One morning / One sunny morning / One chilly morning / One spring morning / One bright day
One windy day / One summer day / One autumn afternoon / One fine morning / One cold morning
On a bright spring day / On a gray morning / Late one afternoon / One evening in May
On the first warm day / One quiet afternoon / One day / Early one morning / One golden afternoon
"""),
    "weather": entries("""
The sun was shining and the air smelled of grass. / A soft wind was blowing.
The sky was as blue as a robin's egg. / There was not a cloud in the sky.
It was the kind of day that makes you want to whistle. / The world was quiet and new.
Somewhere a bird was singing.
"""),
    "sad": entries("""
{H} felt like crying. / {H} swallowed hard. / Tears came to {his} eyes.
It was as if a cloud had covered the sun. / {H} had never felt so alone.
A big tear rolled down {his} face. / {His} heart felt as heavy as a stone.
{H} sat down and sighed. / {H} did not know what to do. / {He} felt very small and very sad.
{His} throat felt tight.
"""),
    "glad": entries("""
{H} was so happy that {he} danced in a circle. / {H} laughed out loud. / {H} felt warm all over.
{His} heart felt as light as a feather. / {H} could not stop smiling. / {H} jumped for joy.
A smile spread across {his} face. / {H} could have hugged the whole world.
{H} clapped and cheered. / {H} was happier than {he} had been in a long time. / {H} beamed.
For a moment {h} could not speak for joy.
"""),
    "meet": entries("""
[Just then|At that moment|After a while|Before long], {gintro} came by.
[Then|Suddenly] {he} heard a voice. It belonged to {gintro}.
[At the corner|By the gate|Under a tree] stood {gintro}.
{Gintro} was [sitting close by|walking past|resting in the shade] and heard {him}.
That was when {he} met {gintro}. / [Soon|Then] {he} came upon {gintro}.
"""),
    "wrong": entries("""
"What is the matter?" asked {g}. / "Why do you look so sad?" {g} asked.
"Is something wrong?" asked {g} in a gentle voice.
"You look troubled, friend," said {g}. "Tell me why."
"""),
    "thanks": entries("""
"Thank you," said {h}. "I could not have done it without you."
"Thank you, {g}!" said {h}, and {he} meant it with all {his} heart.
"How can I ever thank you?" asked {h}. "You already have," said {g}.
{H} gave {g} a big hug. "Thank you," {he} said. / "You are a true friend," {h} told {g}.
"You are the best," said {h}. "Anyone would have done it," said {g}, and looked pleased.
"Thank you for helping me," said {h}. {G} only smiled.
"That is what friends are for," said {g} before {h} could even say thank you.
"""),
    "together": entries("""
They [talked and laughed|shared a piece of <food>|sat side by side and watched the clouds|walked
    home together|sang an old song] until [the sun went down|the first star came out|it was time
    for supper].
They celebrated with some <food>.
And because it was such a fine day, they [stayed out until dark|had a picnic in the grass].
Then the two of them sat down and shared some <food>.
"""),
    "food": entries("""
warm bread / apple pie / honey cake / berry jam / ginger cookies / hot soup / plum cake
sweet pears / toast and butter / pancakes / cheese / roasted chestnuts
"""),
    "end": entries("""
From that day on, {h} and {g} were the best of friends. / After that, {h} and {g} met every day.
And if you go there today, you may still see {h} and {g} side by side.
That night {h} fell asleep with a smile.
That evening, {h} told the whole story at supper, and nobody was sleepy until it was over.
And they all lived happily ever after.
{H} looked up at the moon that night and whispered, "Thank you."
And if they have not moved away, they still live {inp} today.
Ever since that day, {h} and {g} have had a secret wave, just for the two of them.
People {inp} still tell this story when the nights are long.
And that was the end of a long and lovely day. / {H} slept well that night, and {g} did too.
And whenever they think of that day, {h} and {g} begin to smile.
The stars came out one by one, and {h} thought that it had been a very good day.
When {h} went to bed that night, {he} was still smiling.
It was a day that {h} and {g} would remember for a long, long time.
"""),
    "moral": entries("""
{H} had learned that {moral}. / And so {h} learned that {moral}.
From then on, {h} always remembered that {moral}. / Now {he} knew that {moral}.
What {h} never forgot was this: {moral}. / And {g} said, "It is true what they say: {moral}."
Since then, {h} tells everyone that {moral}. / It goes to show that {moral}.
"I will remember this," {he} thought. "I know now that {moral}." / "You see," said {g}, "{moral}."
"""),
    "close": entries("""
<moral> <end> / <moral> / <end> / <moral> <end>
"""),
    "giver": entries("""
It had been a present from {his} [grandmother|grandfather|best friend|favorite aunt].
{He} had made it {himself} one long winter. / {He} had saved for a whole year to buy it.
It was not worth much, but to {him} it was the finest thing in the world.
"""),
}
