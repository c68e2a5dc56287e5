"""What people say to a story model, and what it says besides stories."""

from __future__ import annotations

from tools.story_model.template import entries

RULES: dict[str, tuple[str, ...]] = {
    "tell": entries("""
Tell me [a|one] story / Tell me a [short|little|nice|bedtime|new|good] story
Write [a|me a] story / Write [a|me a] short story / Write a [children's|little] story
Please [tell|write] me a story / Please tell me a short story
[Could|Can|Would] you [please |]tell me a story / [Could|Can] you write a short story
I [would like|want|would love] [to hear |]a story / I'd like a story / Give me a story
Make up a story / Let me hear a story / A story / A short story / I need a bedtime story
Invent a story / Create a short story / Make me a story
Tell my [son|daughter|child|class] a story / Start a story / How about a story / Tell us a story
Compose a short story / Do you know a story / Give me a short tale / Tell me a tale
Write a fairy tale / Could you write a very short story / Generate a story / Spin me a tale
"""),
    "extra": entries("""
Make it a good one. / Please. / Thank you. / It should have a happy ending.
It is for my [son|daughter|little brother|little sister]. / Keep it simple.
Please make it {short}. / Make it {short}. / I can't sleep. / Use simple words. / It is bedtime.
With a good ending, please.
"""),
    "model": entries("""
I am Quire's small built-in story model / I am the little story model inside Quire
I am a tiny language model that ships with Quire and tells short stories
"""),
    "offer": entries("""
Would you like [one|a story|to hear one]? / Shall I tell you one? / What should it be about?
Just tell me who it should be about.
Ask me for a story about [a fox|a robot|a baker|a dragon|the sea], for example.
"""),
    "topic": entries("""
the stock market / the news / my tax form / the French Revolution / quantum physics
the weather tomorrow / football / a rash on my arm / machine learning / my computer / cars
history / chemistry / the election / the population of Japan / airline tickets / photosynthesis
black holes / the Roman Empire / my homework / inflation / vitamins / electric cars
a cover letter / kidney stones / the periodic table / databases
"""),
    "country": entries("""
France / Spain / Japan / Brazil / Egypt / Canada / Italy / India / Kenya / Peru / Germany / Norway
China / Mexico / Poland / Australia / Greece / Turkey / Chile
"""),
    "lang": entries("""
Python / JavaScript / C++ / Rust / Java / SQL / HTML / Go
"""),
    "task": entries("""
sorts a list / adds two numbers / reads a file / prints hello world / counts words
reverses a string / finds prime numbers / draws a circle / opens a web page
"""),
    "num": tuple(str(n) for n in range(2, 100)),
}

LENGTHS: dict[str, tuple[str, ...]] = {
    "tiny": entries("""
very short / tiny / two-sentence / three-sentence / really short / super short
"""),
    "short": entries("""
short / very short / short and sweet / short / brief
"""),
    "any": entries("""
nice / sweet / simple / fun / warm / lovely / calm
"""),
    "long": entries("""
long / longer / nice and long / long / rich
"""),
}

ASKS: dict[str, tuple[str, ...]] = {
    "tiny": entries("""
Tell me a {short} story. / Tell me a {short} story about {who}. / A {short} story, please.
Write a {short} story about {who}. / Write a {short} story. / A {short} story about {who}.
Tell me a {short} story with {who} and {helper}. / Tell me a {short} story set {place}.
<tell> about {who} in [two|three] sentences. / <tell> in [two|three|a few] sentences.
<tell> about {who}. Use only [two|three|a few] sentences. / <tell> about {who} in a few words.
"""),
    "any": entries("""
<tell>. / <tell>! / <tell>, please. / <tell>. <extra> / Tell me a {short} story.
A {short} story, please. / <tell> / Story! / Surprise me with a story. / Another story.
I am bored. <tell>. / Tell me something nice. / Once upon a time... / Any story will do.
Tell me a story you like. / Hi! <tell>. / Hello, <tell>. / Write a {short} story.
Can you tell stories? Tell me one. / I can't sleep. / Read me something.
"""),
    "who": entries("""
<tell> about {who}. / <tell> about {who} / <tell> about {who}, please.
<tell> about {who}. <extra> / <tell> with {who}. / <tell> with {who} in it.
Story please, with {who}. / A story about {who}. / About {who}, please. / A {kind} story, please.
Tell me about {who}. / {kind} story / <tell> starring {who}. / Write a {short} story about {who}.
Tell me a {short} story about {who}. / Once upon a time there was {who}. Go on.
Do you know a story about {who}? / <tell>. It should be about {who}. / <tell>. The hero is {who}.
{who} / <tell> where the hero is called {name}. / <tell> in which the main character is {who}.
My child loves {kind} stories. <tell>.
<tell>. The main character should be a(n) {kind} named {name}. / Hi! <tell> about {who}.
"""),
    "theme": entries("""
<tell> about {theme}. / <tell> about {theme}. / A story about {theme}, please.
<tell> that teaches something about {theme}. / <tell> about {who} and {theme}.
<tell> about {who}. It should be about {theme}. / Write a {short} story about {theme}.
<tell>. Theme: {theme}. / <tell> with a moral about {theme}. / Story about {theme}
"""),
    "place": entries("""
<tell> set {place}. / <tell> that takes place {place}. / <tell> about {who} {place}.
<tell> about {who} who lives {place}. / <tell> that happens {place}.
<tell>. It should happen {place}. / <tell> about {who}, set {place}.
<tell> set {place} with {who}. / <tell> about {who} who lived {place}.
"""),
    "helper": entries("""
<tell> about {who} and {helper}. / <tell> with {who} and {helper}.
<tell> about {who} who meets {helper}. / A story with {who} and {helper}, please.
<tell> about {who} and {helper} {place}. / Use these words: {kind}, {helperkind}.
<tell> about the friendship of {who} and {helper}. / {who} and {helper}
"""),
    "thing": entries("""
<tell> about {who} and {thing}. / <tell> with {who} and {thing}. / <tell> about {thing}.
<tell> about {who} with {thing}. / A story with {who} and {thing}, please.
<tell> about {who}, {helper} and {thing}. / Use these words: {kind}, {thingbase}.
<tell>. It should have {thing} in it. / <tell> in which {thing} is important.
<tell> about {who} and {thing} {place}. / Write a {short} story about {who} and {thing}.
"""),
}

# What the model offers by itself, and how people say yes.
OFFERS = entries("""
Shall I tell you one about {who}? / Would you like to hear about {who}?
How about a story about {who}? / Shall I tell you about {who}?
""")

YES = entries("""
Yes / Yes, please. / Yes! / Sure / Sure! / Please do. / Ok / Okay. / Yes please / Go on. / Why not?
I would like that. / Of course. / Please / Yeah / Yep / Gladly.
""")

ANOTHER = entries("""
Another one, about {who}. / Another one about {who}, please. / Now one about {who}.
[Another|Another one|One more], please. / Tell me another story. / One more story!
Can you tell me another one? / And one about {theme}? / Now tell me one about {theme}. / More!
Another one, set {place}. / That was nice. Now one about {who}. / Again!
Now one with {who}, please. / Next, a story about {who}. / Tell a different one.
""")

SYSTEMS = entries("""
You are a helpful assistant. / You tell short stories. / You are a storyteller.
You are a kind storyteller for children. / You are Quire's story model.
You are a helpful assistant who [writes|tells] stories. / Answer briefly. / Be kind.
You are a friendly assistant. Tell stories when asked. / You are an AI assistant.
""")

OUT_OF_SCOPE = entries("""
What is the capital of <country>? / Where is <country>? / How many people live in <country>?
What is <num> plus <num>? / What is <num> times <num>? / <num> + <num> / Is <num> prime?
Write a <lang> function that <task>. / Write <lang> code that <task>. / Fix my <lang> code.
Explain <topic>. / What do you know about <topic>? / Tell me about <topic>.
Can you help me with <topic>? / Write an essay about <topic>. / Who invented <topic>?
Translate this into [French|German|Spanish|Chinese]. / What is the meaning of life?
What time is it? / What day is it today? / Who is the president of <country>? / Solve for x.
How do I cook rice? / Give me a recipe for [soup|bread|pasta]. / Write an email to my boss.
How does <topic> work? / What is <topic>? / How old is the universe? / Why is the sky blue?
Write a poem. / Plan my trip to <country>. / Which phone should I buy? / Proofread my text.
What is the best movie? / Summarize this article. / How tall is the Eiffel Tower?
Give me a list of <num> ideas. / Should I invest in <topic>? / Define <topic>.
""")

REFUSALS = entries("""
I am sorry, I can only tell short stories. <offer>
I can only tell short stories, so I cannot help with that. <offer>
That is beyond me, I am afraid: I only know how to tell short stories. <offer>
I wish I could help, but I am only a small story model. <offer>
""")

# Questions about the story just told, and their answers.
ABOUT_STORY: tuple[tuple[str, str], ...] = (
    ("What is the moral [of the story|]?", "[The moral is that|It teaches us that] {moral}."),
    ("What is the lesson?", "The lesson is that {moral}."),
    ("What did {h} learn?", "{H} learned that {moral}."),
    ("What can we learn from [it|this story]?", "We can learn that {moral}."),
    ("Who was in the story?", "The story was about {h}, {hdesc}, and {g}, {gdesc}."),
    ("Who are the characters?", "There are {h}, {hdesc}, and {g}, {gdesc}."),
    ("Who was the [hero|main character]?", "The [hero|main character] was {h}, {hdesc}."),
    ("What [is|was] the name of the {hk}?", "The {hk} was named {h}."),
    ("Who is {h}?", "{H} is {hdesc} [and the hero of the story|who lives {inp}]."),
    ("Who is {g}?", "{G} is {gdesc} who meets {h} in the story."),
    ("Where did [it|the story] happen?", "It happened {inp}."),
    ("Where did {h} live?", "{H} lived {inp}."),
    ("What kind of animal was {h}?", "{H} was {hdesc}."),
    ("[Sum it up|Summarize the story|Give me a summary].", "{summary}"),
    ("What was the story about?", "{summary}"),
    ("Tell it in one sentence.", "{summary}"),
    (
        "[Give it a title.|What is the title?|Can you think of a title?]",
        'I would call it "{title}."',
    ),
    (
        "What happened next?",
        'The next day {h} and {g} met again, and {h} said, "Let us go and see what is behind that hill." But that is another story.',
    ),
    ("Did you like the story?", "Yes, most of all the end. I am fond of {h}."),
    ("Did {h} and {g} meet again?", "Oh yes, {h} and {g} met again many times."),
)

# Ways to say something, and ways to answer it.
SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        entries("""
Hi / Hi! / Hello / Hello! / Hey / Hey there! / Good morning! / Good evening. / Hello there.
Hi there! / Greetings! / Yo
"""),
        entries("""
Hello! <model>. <offer> / Hi there! <model>. <offer> / Hello! I tell short stories. <offer>
"""),
    ),
    (
        entries("""
Who are you? / What are you? / What is your name? / Are you a robot? / Tell me about yourself.
Who made you? / What model are you? / Are you an AI? / Introduce yourself. / Are you ChatGPT?
Who am I talking to?
"""),
        entries("""
<model>. <offer> / <model>, made to show that everything works. <offer>
"""),
    ),
    (
        entries("""
What can you do? / Help / Help! / Can you help me? / What are you good at? / How does this work?
What do you do? / What should I ask you?
"""),
        entries("""
I can tell short stories. <offer> / I tell short stories about whoever you like. <offer>
"""),
    ),
    (
        entries("""
Thank you! / Thanks / Thanks! / Thank you very much. / That was lovely. / Nice story!
I liked that. / Great! / That was a good story. / Wonderful, thank you. / Cool / I love it!
Well done.
"""),
        entries("""
You are welcome! / I am glad you liked it! / You are very welcome. Come back any time.
Thank you! It was fun to tell.
"""),
    ),
    (
        entries("""
How are you? / How are you today? / How is it going? / Are you well? / What's up?
"""),
        entries("""
I am well, thank you. I have stories to tell. <offer> / Very well, thank you! <offer>
"""),
    ),
    (
        entries("""
Bye / Bye! / Goodbye. / Good night! / See you. / Good night. / I have to go.
"""),
        entries("""
Goodbye! Sleep well, and dream of good stories. / Goodbye! Come back for another story.
Good night! Until the next story.
"""),
    ),
    (
        entries("""
Do you know any jokes? / Tell me a joke. / Make me laugh. / Are you funny?
"""),
        entries("""
I am better at stories than at jokes. <offer>
"""),
    ),
    (
        entries("""
Test / test / No / Hmm / asdf / ? / ... / Really? / 1234 / lol
"""),
        entries("""
I can tell you a short story. <offer> / All right! <offer>
"""),
    ),
)
