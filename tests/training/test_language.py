"""Captions describe a scene in many ways, and the tokenizer accepts any text."""

from random import Random

from training.flipbook.captions import HELD_OUT_PHRASINGS, Wording, write_caption
from training.flipbook.prompts import write_eval_prompts, write_verb_prompts
from training.flipbook.scenes import Actor, Scene, sample_training_scene
from training.flipbook.tokenizer import build_tokenizer, tokenize
from training.flipbook.velocity import TEXT_LENGTH

SCENE = Scene((Actor("ball", "grey", "large", "bounce"),), "meadow")


def test_one_scene_has_hundreds_of_captions():
    rng = Random(0)
    captions = {write_caption(SCENE, rng, Wording(is_complete=True)) for _ in range(1000)}
    assert len(captions) > 500
    assert any("gray" in caption for caption in captions)
    assert any("coloured" in caption for caption in captions)
    assert any("colored" in caption for caption in captions)


def test_an_article_matches_the_next_word():
    rng = Random(1)
    scene = Scene((Actor("boat", "orange", "medium", "left"),), "sea")
    captions = " ".join(write_caption(scene, rng, Wording(is_complete=True)) for _ in range(300))
    assert " a orange" not in captions
    assert "an orange" in captions


def test_training_never_shows_a_held_out_combination():
    rng = Random(2)
    assert not any(sample_training_scene(rng).is_held_out for _ in range(2000))


def test_evaluation_prompts_are_held_out_half_with_held_out_phrasings():
    prompts = write_eval_prompts(200)
    assert all(prompt.scene.is_held_out for prompt in prompts)
    assert len({prompt.text for prompt in prompts}) == 200
    assert sum(len(prompt.scene.actors) == 2 for prompt in prompts) == 50
    unseen = ("please draw", "we see", "can see", "short film")
    single = [prompt.text.lower() for prompt in prompts[1::2] if len(prompt.scene.actors) == 1]
    found = [prompt for prompt in single if any(words in prompt for words in unseen) or ":" in prompt]
    assert found == single
    assert len(HELD_OUT_PHRASINGS) == 5


def test_only_training_captions_use_own_verbs():
    rng = Random(4)
    scene = Scene((Actor("fish", "blue", "medium", "right"),), "sea")
    captions = [write_caption(scene, rng).lower() for _ in range(300)]
    assert any("swims to the right" in caption for caption in captions)
    assert not any("swim" in prompt.text for prompt in write_eval_prompts(200))


def test_prompts_with_own_verbs_are_held_out_and_name_a_direction():
    prompts = write_verb_prompts(12)
    assert all(prompt.scene.is_held_out for prompt in prompts)
    assert {prompt.scene.actors[0].motion for prompt in prompts} <= {"left", "right", "up", "down"}
    directions = ("left", "right", "up", "down", "higher", "lower")
    assert all(any(word in prompt.text for word in directions) for prompt in prompts)


def test_no_word_of_the_grammar_is_split():
    rng, tokenizer = Random(5), build_tokenizer()
    prompts = [prompt.text for prompt in write_verb_prompts(50)]
    prompts += [write_caption(sample_training_scene(rng), rng, Wording(is_complete=True)) for _ in range(200)]
    assert all(len(piece) > 2 or piece == "▁a" for prompt in prompts for piece in tokenizer.tokenize(prompt))


def test_every_word_of_the_grammar_is_one_token():
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


def test_unknown_words_are_split_into_letters_and_any_text_is_accepted():
    tokenizer = build_tokenizer()
    assert tokenizer.tokenize("zog") == ["▁", "z", "o", "g"]
    for text in ("", " ", "日本語", "a" * 5000, "\x00\n\t", "🚀🚀", "café"):
        ids, lengths = tokenize(tokenizer, [text], TEXT_LENGTH)
        assert ids.shape == (1, TEXT_LENGTH)
        assert 1 <= int(lengths) < TEXT_LENGTH
        assert int(ids[0, -1]) == 0


def test_captions_fit_the_text_length():
    rng, tokenizer = Random(3), build_tokenizer()
    captions = [write_caption(sample_training_scene(rng), rng) for _ in range(1000)]
    lengths = [len(ids) for ids in tokenizer(captions).input_ids]
    assert sum(length >= TEXT_LENGTH for length in lengths) < 5
