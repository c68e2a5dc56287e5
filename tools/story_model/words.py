"""The words that stories are made of: who, what and where."""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.replace("\n", ",").split(",") if item.strip())


GIRLS = listed("""
Mia, Lily, Nora, Ada, Ruby, Clara, Hazel, Ivy, Luna, Elsie, Maya, Zoe, Tess, Willa, Anna, Bella
Daisy, Ella, Fern, Gia, Hana, Iris, Juno, Kira, Lena, Mabel, Nina, Olive, Penny, Rosa, Sara, Tilly
Uma, Vera, Wren, Yara, Amara, Beth, Cora, Dora, Emma, Freya, Greta, Holly, Ines, Jane, Kate, Lucy
Molly, Nell, Opal, Poppy, Rose, Sofia, Thea, Violet, Wendy, Zara, Alma, Bonnie, Carmen, Delia
Esme, Flora, Grace, Heidi, Isla, Julia, Leila, Marta, Nadia, Pearl, Quinn, Robin, Stella, Tara
""")
BOYS = listed("""
Ben, Tom, Max, Leo, Sam, Finn, Oscar, Theo, Jack, Noah, Eli, Hugo, Felix, Otto, Milo, Toby
Adam, Bruno, Caleb, Dan, Emil, Fred, George, Henry, Ivan, Jonas, Karl, Luke, Marco, Ned, Owen
Paul, Ravi, Simon, Tim, Victor, Will, Yusuf, Zack, Alfie, Barney, Charlie, David, Ernie, Frank
Gus, Harry, Isaac, Jasper, Kofi, Liam, Mateo, Nico, Omar, Peter, Remy, Seth, Tariq, Walter, Amir
Arlo, Basil, Cosmo, Diego, Edgar, Ford, Gabe, Hector, Jamie, Kenji, Louis, Moe, Nils, Pablo, Rory
""")
PET_NAMES = listed("""
Pip, Biscuit, Clover, Pepper, Button, Maple, Nutmeg, Bramble, Pebble, Ziggy, Mopsy, Rusty, Sunny
Bubbles, Cocoa, Dusty, Flicker, Ginger, Honey, Jingle, Kiwi, Mango, Noodle, Patch, Pickle, Pumpkin
Quill, Scout, Smudge, Sprout, Tumble, Twig, Waffles, Whiskers, Acorn, Bean, Cricket, Domino, Ember
Fidget, Gizmo, Hopper, Inky, Juniper, Lucky, Marble, Nibbles, Olly, Peanut, Ripple, Snowy, Tango
Velvet, Widget, Yodel, Zuzu, Barley, Copper, Dandy, Echo, Fizz, Hiccup, Jasmine, Kipper, Moss
""")

# Of these, the ones that are always a she where names tell the gender.
PET_GIRLS = frozenset(
    listed("""
Clover, Pepper, Maple, Nutmeg, Mopsy, Sunny, Bubbles, Cocoa, Ginger, Honey, Jingle, Kiwi, Mango
Pebble, Pumpkin, Sprout, Acorn, Bean, Ember, Inky, Juniper, Marble, Nibbles, Ripple, Snowy, Velvet
Zuzu, Jasmine, Echo, Moss, Quill, Twig, Hopper, Flicker, Dandy, Waffles, Cricket
""")
)

ANIMALS = listed("""
fox, rabbit, bear, mouse, owl, hedgehog, squirrel, deer, badger, otter, beaver, frog, toad, turtle
duck, goose, hen, rooster, sparrow, robin, crow, raven, swan, stork, heron, pigeon, parrot, penguin
puffin, seagull, eagle, hawk, woodpecker, hummingbird, peacock, flamingo, ostrich, bat, mole, rat
hamster, guinea pig, gerbil, chipmunk, weasel, ferret, skunk, raccoon, opossum, porcupine, wolf
coyote, lion, tiger, leopard, cheetah, panther, lynx, elephant, hippo, rhino, giraffe, zebra
antelope, gazelle, buffalo, bison, moose, reindeer, elk, camel, llama, alpaca, donkey, mule, horse
pony, cow, calf, goat, lamb, sheep, pig, piglet, monkey, gorilla, chimp, lemur, sloth, koala, panda
kangaroo, wallaby, wombat, platypus, anteater, armadillo, meerkat, mongoose, cat, kitten, dog, puppy
snail, beetle, ladybug, bee, ant, spider, cricket, grasshopper, butterfly, moth, dragonfly, firefly
caterpillar, worm, crab, lobster, octopus, starfish, seahorse, dolphin, whale, seal, walrus, shark
salmon, goldfish, jellyfish, crocodile, alligator, lizard, gecko, chameleon, iguana, snake, newt
salamander, tadpole, cub, fawn, foal, chick, duckling, gosling, bunny, hare, stoat, vole, shrew
jay, finch, wren, magpie, toucan, cockatoo, kiwi, emu, yak, ibex, tapir, okapi, jackal, hyena
narwhal, manatee, squid, eel, trout, pelican, quail, turkey, polar bear, snow leopard, sea lion
""")
PEOPLE = listed("""
girl, boy, baker, farmer, sailor, fisherman, miller, tailor, weaver, painter, carpenter, blacksmith
shoemaker, clockmaker, gardener, shepherd, beekeeper, teacher, doctor, nurse, librarian, postman
firefighter, pilot, captain, cook, chef, singer, dancer, drummer, musician, juggler, clown, magician
inventor, scientist, astronaut, explorer, knight, prince, princess, king, queen, page, pirate, piper
potter, woodcutter, lighthouse keeper, train driver, bus driver, grandmother, grandfather, student
poet, storyteller, toymaker, candlemaker, glassblower, florist, vet, ranger, builder, mechanic
mapmaker, traveler, merchant, innkeeper, bookseller, milkman, ferryman, detective, artist, writer
""")
FANTASY = listed("""
dragon, robot, fairy, elf, giant, gnome, goblin, troll, mermaid, unicorn, wizard, witch, ghost
phoenix, griffin, snowman, scarecrow, monster, ogre, pixie, dwarf, genie, centaur, sprite, alien
yeti, sea serpent, toy soldier, teddy bear, puppet, rag doll, cloud, star, wooden horse
tin man, gingerbread man, paper bird, moon rabbit, teapot, tugboat, tractor, train, lantern
snowflake
""")
TRAITS = listed("""
brave, curious, shy, kind, clever, cheerful, gentle, lazy, grumpy, hungry, lonely, proud, quiet
sleepy, stubborn, tiny, young, little, small, old, clumsy, careful, playful, happy, dreamy, busy
friendly, silly, wise, bold, patient, polite, merry, nervous, bright, honest, messy, noisy
thoughtful
""")
LITTLE = ("little", "small", "young", "tiny", "")

OBJECTS = listed("""
kite, ball, bell, key, lantern, map, scarf, hat, book, drum, flute, whistle, button, ribbon, ring
necklace, coin, marble, shell, feather, acorn, pebble, stone, crystal, mirror, comb, brush, basket
bucket, spoon, cup, teapot, kettle, bowl, jar, bottle, box, chest, bag, backpack, umbrella, coat
mitten, glove, boot, shoe, sock, blanket, pillow, quilt, candle, lamp, clock, watch, compass
telescope, spyglass, magnifying glass, paintbrush, pencil, crayon, notebook, letter, postcard
photograph, painting, puzzle, doll, teddy bear, puppet, top, yo-yo, toy boat, toy train, toy car
wagon, sled, scooter, skateboard, bicycle, skipping rope, balloon, bubble wand, fishing rod, net
oar, anchor, rope, ladder, hammer, shovel, rake, watering can, wheelbarrow, flowerpot, seed
sunflower
rose, leaf, pumpkin, apple, pear, cake, pie, cookie, honey pot, loaf of bread, crown, wand, cape
shield, helmet, flag, trumpet, violin, guitar, harp, music box, snow globe, locket, thimble
needle, rocking chair, stool, bird cage, nest, egg, wooden horse, paper boat, paper plane
wind chime, walking stick, violin bow, camera, radio, magnet, flashlight, treasure chest, horn
bracelet, brooch, purse, vase, saucer, mug, pinecone, whirligig, bookmark, sweater, hood, banjo
""")
# What the wind can carry, what can break and what can be made at home.
LIGHT = listed("""
hat, scarf, kite, balloon, letter, map, ribbon, feather, umbrella, paper boat, paper plane, flag
glove, mitten, sock, postcard, photograph, painting, cape, bookmark, leaf, blanket, hood, ball
""")
FRAGILE = listed("""
cup, mug, saucer, bowl, teapot, vase, mirror, lamp, clock, violin, music box, toy boat, toy train, doll
flute, guitar, harp, plate, jar, lantern, snow globe, picture frame, bird cage, puppet, camera, radio
umbrella, telescope, kite, wooden horse, flowerpot, stool, wind chime, banjo, toy car, drum, model ship
""")
MADE = listed("""
kite, drum, flute, basket, scarf, quilt, lantern, candle, toy boat, wagon, sled, stool, rocking chair
puppet, doll, blanket, sweater, hat, bowl, mug, vase, bird cage, wind chime, ladder, bicycle, scooter
rope, net, raft, tent, crown, cape, guitar, banjo, whirligig, telescope, clock, wheelbarrow, music box
skateboard, chest, bell, teapot, bracelet, necklace, cake, pie, painting, bookmark, toy train, robot
""")
SHADES = listed("""
red, blue, green, yellow, purple, orange, white, silver, golden, shiny, old, new, tiny, wooden
striped, little, painted, bright, small, pretty, soft, heavy, beautiful, round, wonderful
""")

# Preposition and noun; the article is added, or written out where it never changes.
PLACES = tuple(
    (prep, noun)
    for prep, nouns in {
        "in": """forest, village, valley, meadow, garden, town, city, castle, cottage, cabin, jungle
        desert, palace, cave, orchard, vineyard, swamp, marsh, park, harbor town, mountain village
        pine wood, bamboo forest, little house, windmill, tower, treehouse, tall tree, burrow, barn
        stable, greenhouse, library, museum, bakery, toy shop, school, workshop, kingdom, snowy land
        fishing village, apartment building, bookshop, canyon, rainforest, old inn, clock tower""",
        "on": """farm, hill, mountain, island, beach, riverbank, boat, big ship, ranch, cliff
        quiet street, snowy mountain, tropical island, lily pad, rooftop, hillside, busy street
        houseboat, train, floating island, sunny coast""",
        "by": """sea, river, lake, pond, stream, waterfall, lighthouse, sea cliff, old bridge
        railway, canal, bay, ocean""",
        "near": """market, old mill, zoo, train station, airport, circus, playground, school
        volcano, frozen lake, old well, hot spring""",
        "at the edge of": "forest, town, village, desert, jungle, field, kingdom, city, wood, sea",
    }.items()
    for noun in listed(nouns)
)
ODD_PLACES = (
    ("on", "the moon"), ("in", "outer space"), ("under", "the sea"), ("on", "a space station"),
    ("above", "the clouds"), ("at", "the North Pole"), ("on", "a far planet"), ("in", "the sky"),
    ("under", "the ground"), ("on", "Mars"), ("inside", "a volcano"), ("in", "the clouds"),
    ("at", "the bottom of the sea"), ("in", "a space ship"),
)  # fmt: skip
UNIQUE = frozenset({"sea", "ocean"})

SYLLABLES = listed("""
ba, be, bo, bra, cal, do, dra, el, fa, fen, gra, hal, jo, ka, ki, la, lo, ma, mi, mor, na, ni, no
or, pa, pel, qua, ri, ro, sa, shi, ta, tem, to, u, va, vi, wo, xa, yo, za, zi, zor, lin, dar, vik
ton, mus, lia, ra, bel, dor, nix, tik, pum, fle, glo, sno, tri, ple, wim, chu, gri, sto, blin, osh
""")
