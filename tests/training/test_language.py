"""Captions say what the scene is in many ways, and the tokenizer takes whatever is typed."""

from random import Random

from training.flipbook.captions import HELD_OUT_PHRASINGS, Wording, write_caption
from training.flipbook.prompts import write_questions, write_verb_questions
from training.flipbook.velocity import TEXT_SLOTS
from training.flipbook.words import build_tokenizer, tokenize
from training.flipbook.world import Actor, Scene, sample_training_scene

SCENE = Scene((Actor("ball", "grey", "large", "bounce"),), "meadow")


def test_one_scene_has_hundreds_of_captions():
    rng = Random(0)
    captions = {write_caption(SCENE, rng, Wording(is_complete=True)) for _ in range(1000)}
    assert len(captions) > 500
    assert any("gray" in caption for caption in captions)
    assert any("coloured" in caption for caption in captions)
    assert any("colored" in caption for caption in captions)


def test_an_article_fits_the_word_behind_it():
    rng = Random(1)
    scene = Scene((Actor("boat", "orange", "medium", "left"),), "sea")
    captions = " ".join(write_caption(scene, rng, Wording(is_complete=True)) for _ in range(300))
    assert " a orange" not in captions
    assert "an orange" in captions


def test_training_never_shows_a_held_out_combination():
    rng = Random(2)
    assert not any(sample_training_scene(rng).is_held_out for _ in range(2000))


def test_evaluation_asks_only_held_out_combinations_half_in_held_out_phrasings():
    questions = write_questions(200)
    assert all(question.scene.is_held_out for question in questions)
    assert len({question.prompt for question in questions}) == 200
    assert sum(len(question.scene.actors) == 2 for question in questions) == 50
    unseen = ("please draw", "we see", "can see", "short film")
    single = [q.prompt.lower() for q in questions[1::2] if len(q.scene.actors) == 1]
    spoken = [prompt for prompt in single if any(words in prompt for words in unseen) or ":" in prompt]
    assert spoken == single
    assert len(HELD_OUT_PHRASINGS) == 5


def test_a_fish_swims_and_a_ball_of_the_evaluation_does_not():
    rng = Random(4)
    scene = Scene((Actor("fish", "blue", "medium", "right"),), "sea")
    captions = [write_caption(scene, rng).lower() for _ in range(300)]
    assert any("swims to the right" in caption for caption in captions)
    assert not any("swim" in question.prompt for question in write_questions(200))


def test_questions_with_own_verbs_are_held_out_and_say_where_to():
    questions = write_verb_questions(12)
    assert all(question.scene.is_held_out for question in questions)
    assert {question.scene.actors[0].motion for question in questions} <= {"left", "right", "up", "down"}
    directions = ("left", "right", "up", "down", "higher", "lower")
    assert all(any(word in question.prompt for word in directions) for question in questions)


def test_no_word_of_the_grammar_falls_apart():
    rng, tokenizer = Random(5), build_tokenizer()
    prompts = [question.prompt for question in write_verb_questions(50)]
    prompts += [write_caption(sample_training_scene(rng), rng, Wording(is_complete=True)) for _ in range(200)]
    assert all(len(piece) > 2 or piece == "▁a" for prompt in prompts for piece in tokenizer.tokenize(prompt))


def test_every_word_of_the_grammar_is_one_piece():
    pieces = build_tokenizer().tokenize("A big scarlet beach-ball bounces up and down, on the grass!")
    assert pieces == [
        f"▁{word}"
        for word in [
            "a",
            "big",
            "scarlet",
            "beach",
            "ball",
            "bounces",
            "up",
            "and",
            "down",
            "on",
            "the",
            "grass",
        ]
    ]


def test_unknown_words_fall_apart_into_letters_and_nothing_crashes():
    tokenizer = build_tokenizer()
    assert tokenizer.tokenize("zog") == ["▁", "z", "o", "g"]
    for text in ("", " ", "日本語", "a" * 5000, "\x00\n\t", "🚀🚀", "café"):
        ids, lengths = tokenize(tokenizer, [text], TEXT_SLOTS)
        assert ids.shape == (1, TEXT_SLOTS)
        assert 1 <= int(lengths) < TEXT_SLOTS
        assert int(ids[0, -1]) == 0


def test_captions_fit_their_slots():
    rng, tokenizer = Random(3), build_tokenizer()
    captions = [write_caption(sample_training_scene(rng), rng) for _ in range(1000)]
    lengths = [len(ids) for ids in tokenizer(captions).input_ids]
    assert sum(length >= TEXT_SLOTS for length in lengths) < 5
