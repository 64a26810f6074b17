"""Captions of a scene: synonyms, word orders, articles, two spellings, and words without meaning."""

from dataclasses import dataclass
from random import Random

from training.flipbook.scenes import NATURAL_COLOUR, Actor, Scene

OBJECT_WORDS = {
    "ball": ("ball", "sphere", "beach ball", "ball"),
    "box": ("box", "cube", "square", "crate", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "ring": ("ring", "hoop", "donut", "ring"),
    "heart": ("heart",),
    "diamond": ("diamond", "gem", "jewel", "diamond"),
    "car": ("car", "automobile", "car"),
    "boat": ("boat", "ship", "sailboat", "boat"),
    "fish": ("fish",),
    "bird": ("bird", "songbird", "bird"),
    "tree": ("tree",),
    "house": ("house", "home", "cottage", "hut", "house"),
    "sun": ("sun",),
    "moon": ("moon", "crescent moon", "crescent", "moon"),
    "flower": ("flower", "daisy", "blossom", "flower"),
    "rocket": ("rocket", "spaceship", "space rocket", "rocket"),
    "balloon": ("balloon",),
}

COLOUR_WORDS = {
    "red": ("red", "scarlet", "red", "crimson", "red"),
    "orange": ("orange",),
    "yellow": ("yellow", "yellow", "golden"),
    "green": ("green", "green", "emerald"),
    "teal": ("teal", "turquoise", "cyan", "teal"),
    "blue": ("blue", "blue", "royal blue"),
    "purple": ("purple", "violet", "purple"),
    "pink": ("pink", "pink", "rose pink"),
    "brown": ("brown", "brown", "chocolate brown"),
    "black": ("black", "black", "jet black"),
    "white": ("white", "white", "pure white"),
    "grey": ("grey", "gray"),
}

SIZE_WORDS = {
    "small": ("small", "little", "tiny", "small"),
    "medium": ("", "", "", "medium", "medium-sized", "mid-size"),
    "large": ("large", "big", "huge", "giant", "large"),
}

# The third person and the present participle.
MOTION_WORDS = {
    "left": (
        ("drifts left", "drifting left"), ("moves to the left", "moving to the left"),
        ("goes left", "going left"), ("travels left", "travelling left"),
        ("slides to the left", "sliding to the left"),
        ("heads left", "heading left"), ("glides leftwards", "gliding leftwards"),
        ("travels left", "traveling left"),
        ("moves from right to left", "moving from right to left"),
    ),
    "right": (
        ("drifts right", "drifting right"), ("moves to the right", "moving to the right"),
        ("goes right", "going right"), ("travels right", "travelling right"),
        ("slides to the right", "sliding to the right"), ("heads right", "heading right"),
        ("glides rightwards", "gliding rightwards"), ("travels right", "traveling right"),
        ("moves from left to right", "moving from left to right"),
    ),
    "up": (
        ("drifts up", "drifting up"), ("rises", "rising"), ("moves up", "moving up"), ("goes up", "going up"),
        ("floats upwards", "floating upwards"), ("climbs", "climbing"), ("ascends", "ascending"),
        ("floats up", "floating up"), ("moves upward", "moving upward"),
    ),
    "down": (
        ("drifts down", "drifting down"), ("sinks", "sinking"), ("moves down", "moving down"),
        ("goes down", "going down"), ("floats downwards", "floating downwards"), ("descends", "descending"),
        ("slowly sinks", "slowly sinking"), ("moves downward", "moving downward"),
    ),
    "bounce": (
        ("bounces", "bouncing"), ("bounces up and down", "bouncing up and down"), ("hops", "hopping"),
        ("jumps up and down", "jumping up and down"), ("jumps", "jumping"),
        ("keeps bouncing", "bouncing again and again"),
    ),
    "orbit": (
        ("orbits", "orbiting"), ("moves in a circle", "moving in a circle"),
        ("circles around", "circling around"),
        ("goes round in circles", "going round in circles"), ("flies in a circle", "flying in a circle"),
        ("circles", "circling"), ("loops around", "looping around"),
    ),
    "spin": (
        ("spins", "spinning"), ("rotates", "rotating"), ("turns around itself", "turning around itself"),
        ("whirls", "whirling"), ("spins in place", "spinning in place"), ("twirls", "twirling"),
        ("turns", "turning"),
    ),
    "grow": (
        ("grows", "growing"), ("gets bigger", "getting bigger"), ("becomes larger", "becoming larger"),
        ("expands", "expanding"), ("swells", "swelling"), ("grows bigger", "growing bigger"),
    ),
    "shrink": (
        ("shrinks", "shrinking"), ("gets smaller", "getting smaller"),
        ("becomes smaller", "becoming smaller"),
        ("contracts", "contracting"), ("dwindles", "dwindling"),
    ),
    "fall": (
        ("falls", "falling"), ("falls down", "falling down"), ("drops", "dropping"),
        ("falls from the sky", "falling from the sky"),
        ("drops to the ground", "dropping to the ground"), ("plunges", "plunging"),
        ("tumbles down", "tumbling down"),
    ),
    "zigzag": (
        ("zigzags", "zigzagging"), ("moves in a zigzag", "moving in a zigzag"),
        ("zig-zags across", "zig-zagging across"),
        ("follows a zigzag path", "following a zigzag path"), ("zigzags sideways", "zigzagging sideways"),
    ),
    "sway": (
        ("sways", "swaying"), ("swings from side to side", "swinging from side to side"),
        ("rocks", "rocking"),
        ("swings", "swinging"), ("sways left and right", "swaying left and right"), ("wobbles", "wobbling"),
        ("moves back and forth", "moving back and forth"),
    ),
    "still": (
        ("stays still", "staying still"), ("stands still", "standing still"), ("does not move", "not moving"),
        ("rests", "resting"), ("is still", "holding still"), ("stays in place", "staying in place"),
        ("is motionless", "motionless"), ("sits", "sitting"),
    ),
}  # fmt: skip

# The verbs that people use for the movement of some objects. They need a direction.
OWN_VERBS = {
    "fish": ("swims", "swimming"), "bird": ("flies", "flying"), "car": ("drives", "driving"),
    "boat": ("sails", "sailing"), "ball": ("rolls", "rolling"), "ring": ("rolls", "rolling"),
    "rocket": ("flies", "flying"), "balloon": ("floats", "floating"), "star": ("shoots", "shooting"),
}  # fmt: skip
DIRECTION_WORDS = {
    "left": ("left", "to the left", "leftwards", "towards the left", "from right to left"),
    "right": ("right", "to the right", "rightwards", "towards the right", "from left to right"),
    "up": ("up", "upwards", "higher"),
    "down": ("down", "downwards", "lower"),
}

SETTING_WORDS = {
    "plain": (
        "on a plain background", "against a plain background", "on a plain backdrop",
        "in front of a plain wall",
        "on a simple background", "in an empty room", "",
    ),
    "night": (
        "in the night sky", "at night", "under the stars", "in a starry sky", "among the stars",
        "on a starry night",
        "in the dark night", "in space",
    ),
    "sea": (
        "on the sea", "at sea", "over the ocean", "on the water", "above the waves", "in the ocean",
        "on the waves",
        "by the sea",
    ),
    "meadow": (
        "on the grass", "in a meadow", "over a green meadow", "in a grassy field", "on a lawn",
        "on green hills",
        "in the countryside", "in the park",
    ),
    "snow": (
        "in the snow", "on a snowy hill", "in winter", "on the snow", "in falling snow",
        "in a snowy landscape",
        "on a snowy day",
    ),
    "city": (
        "in the city", "in front of a skyline", "above the city", "in a city street", "in town",
        "before tall buildings", "downtown", "over the rooftops",
    ),
    "desert": (
        "in the desert", "over the dunes", "on the sand", "among sand dunes", "in a sandy desert",
        "above the desert",
    ),
    "sunset": (
        "at sunset", "at dusk", "in the evening light", "under a sunset sky", "in front of the sunset",
        "at sundown",
    ),
}  # fmt: skip

RELATION_WORDS = {
    "left of": ("left of", "to the left of", "on the left of", "on the left side of"),
    "right of": ("right of", "to the right of", "on the right of", "on the right side of"),
    "above": ("above", "over", "on top of", "higher than"),
    "below": ("below", "under", "beneath", "underneath"),
    "behind": ("behind", "in back of", "partly hidden by"),
    "in front of": ("in front of", "before", "in the foreground of"),
}

# {it}: the actor; {does}, {doing}: its motion; {where}: the setting.
PHRASINGS = (
    "{it} {does} {where}", "{it} {does} {where}", "{it} {does} {where}", "{it} {doing} {where}",
    "{it} is {doing} {where}", "{where}, {it} {does}", "{where} {it} {does}", "{it} {where} {does}",
    "{it} {where}, {doing}", "{it}, {doing}, {where}", "there is {it} {doing} {where}",
    "a video of {it} {doing} {where}", "a clip of {it} that {does} {where}",
    "an animation of {it} {doing} {where}",
    "show me {it} {doing} {where}", "{it} that {does} {where}", "{it} which is {doing} {where}",
    "{where}: {it}, {doing}", "{it} keeps {doing} {where}", "make {it} that {does} {where}",
)  # fmt: skip
HELD_OUT_PHRASINGS = (
    "please draw {it} {doing} {where}", "we see {it} {doing} {where}", "{where} one can see {it} {doing}",
    "a short film in which {it} {does} {where}", "{doing} {where}: {it}",
)  # fmt: skip

PAIR_PHRASINGS = (
    "{it} {rel} {other} {where}", "{it} {doing} {rel} {other} {where}", "{it} {does} {rel} {other} {where}",
    "{where}, {it} {does} {rel} {other}", "{it} is {rel} {other} {where}",
    "{where} there is {it} {rel} {other}",
    "a video of {it} {doing} {rel} {other} {where}", "{it} {rel} {other}, {where}",
    "{it} {does} {where} {rel} {other}",
)  # fmt: skip
BOTH_PHRASINGS = (
    "{it} {does} {rel} {other} that {other_does} {where}", "{it} {doing} {rel} {other} {other_doing} {where}",
    "{where}, {it} {does} and {other} {other_does}", "{it} and {other} {where}",
    "{it} {does} {where} while {other} {other_does}", "{it} {doing} and {other} {other_doing} {where}",
)  # fmt: skip
HELD_OUT_PAIR_PHRASINGS = (
    "we see {it} {doing} {rel} {other} {where}", "please draw {it} {rel} {other} {where}",
    "a short film of {it} {rel} {other} {where}",
)  # fmt: skip

# Words without visible meaning, which the model learns to ignore.
FILLERS = (
    "beautiful", "lovely", "cute", "nice", "shiny", "bright", "cartoon", "happy", "pretty", "cheerful",
    "colorful",
    "colourful", "gently", "slowly", "quickly", "smoothly", "softly", "calmly", "4k", "high quality",
    "detailed",
    "illustration", "flat design", "cinematic", "simple", "animated", "single", "lonely", "magic",
    "wonderful",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wording:
    """How much of a scene a caption may omit or vary."""

    is_complete: bool = False
    is_held_out: bool = False
    own_verb_share: float = 0.35  # how often an object uses its own verb


def write_caption(scene: Scene, rng: Random, wording: Wording = Wording()) -> str:
    first = scene.actors[0]
    does, doing = _name_motion(first, rng, wording)
    words = {
        "it": _name_actor(first, rng, wording),
        "does": does,
        "doing": doing,
        "where": _name_setting(scene, rng, wording),
    }
    if len(scene.actors) == 2:
        words |= _name_second(scene, rng, wording)
    text = _choose_phrasing(scene, rng, wording).format(**words)
    if not (wording.is_complete or wording.is_held_out):
        text = _add_noise_words(text, rng)
    return _tidy(text, rng)


def _choose_phrasing(scene: Scene, rng: Random, wording: Wording) -> str:
    if len(scene.actors) == 1:
        return rng.choice(HELD_OUT_PHRASINGS if wording.is_held_out else PHRASINGS)
    if wording.is_held_out:
        return rng.choice(HELD_OUT_PAIR_PHRASINGS)
    return rng.choice(BOTH_PHRASINGS if rng.random() < 0.4 else PAIR_PHRASINGS)


def _name_second(scene: Scene, rng: Random, wording: Wording) -> dict[str, str]:
    other = scene.actors[1]
    does, doing = _name_motion(other, rng, wording)
    relation = rng.choice(RELATION_WORDS[scene.relation or "behind"])
    return {
        "other": _name_actor(other, rng, wording),
        "other_does": does,
        "other_doing": doing,
        "rel": relation,
    }


def _name_motion(actor: Actor, rng: Random, wording: Wording) -> tuple[str, str]:
    has_verb = actor.object in OWN_VERBS and actor.motion in DIRECTION_WORDS
    if not (has_verb and wording.own_verb_share and rng.random() < wording.own_verb_share):
        return rng.choice(MOTION_WORDS[actor.motion])
    does, doing = OWN_VERBS[actor.object]
    direction = rng.choice(DIRECTION_WORDS[actor.motion])
    is_vague = actor.motion in {"left", "right"} and not (wording.is_complete or wording.is_held_out)
    if is_vague and rng.random() < 0.15:
        direction = rng.choice(("", "across", "past", "along"))
    return f"{does} {direction}", f"{doing} {direction}"


def _name_setting(scene: Scene, rng: Random, wording: Wording) -> str:
    words = SETTING_WORDS[scene.setting]
    may_omit = scene.setting == "plain" and rng.random() < 0.5
    if may_omit and not wording.is_complete:
        return ""
    return rng.choice([word for word in words if word])


def _name_actor(actor: Actor, rng: Random, wording: Wording) -> str:
    noun = rng.choice(OBJECT_WORDS[actor.object])
    colour = rng.choice(COLOUR_WORDS[actor.colour])
    size = rng.choice(SIZE_WORDS[actor.size])
    is_obvious = actor.colour == NATURAL_COLOUR[actor.object] and rng.random() < 0.3
    if is_obvious and not wording.is_complete and not wording.is_held_out:
        colour = ""
    if rng.random() < 0.4:
        size = ""
    article = rng.choice(("a", "a", "a", "the", "one", ""))
    style = rng.random()
    if colour and style < 0.06:
        return f"{article} {size} {noun} that is {colour}"
    if colour and style < 0.11:
        return f"{article} {size} {colour}-{rng.choice(('coloured', 'colored'))} {noun}"
    if colour and style < 0.15:
        return f"{article} {size} {noun} of {colour} {rng.choice(('colour', 'color'))}"
    return f"{article} {size} {colour} {noun}"


def _add_noise_words(text: str, rng: Random) -> str:
    """Insert fillers and invented words, so the model learns to ignore both."""
    words = text.split()
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2))):
        filler = rng.choice(FILLERS) if rng.random() < 0.5 else _invent_word(rng)
        words.insert(rng.choice((0, len(words), rng.randint(0, len(words)))), filler)
    return " ".join(words)


def _invent_word(rng: Random) -> str:
    syllables = (
        "ba",
        "lo",
        "mir",
        "ten",
        "sk",
        "ou",
        "ple",
        "gra",
        "nd",
        "ish",
        "er",
        "vi",
        "to",
        "qua",
        "zz",
        "ing",
        "ly",
    )
    return "".join(rng.choice(syllables) for _ in range(rng.randint(1, 3)))


def _tidy(text: str, rng: Random) -> str:
    text = " ".join(text.split()).replace(" ,", ",").replace(" :", ":").strip(" ,:")
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}")
        text = f"an {text[2:]}" if text.startswith(f"a {vowel}") else text
    if rng.random() < 0.3:
        text = text[:1].upper() + text[1:]
    return text + rng.choice(("", "", "", "."))
