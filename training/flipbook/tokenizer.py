"""The tokenizer: every word of the grammar is one token, any other word is split into letters.

Case, accents and punctuation are removed first.
"""

import string

import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from training.flipbook import captions

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
SPACE = "▁"


def collect_words() -> list[str]:
    """Every word of the grammar, sorted, so the vocabulary is always the same."""
    tables = (captions.OBJECT_WORDS, captions.COLOUR_WORDS, captions.SIZE_WORDS, captions.SETTING_WORDS)
    phrases = [phrase for table in tables for phrases in table.values() for phrase in phrases]
    phrases += [phrase for forms in captions.MOTION_WORDS.values() for form in forms for phrase in form]
    phrases += [form for forms in captions.OWN_VERBS.values() for form in forms]
    phrases += [phrase for phrases in captions.DIRECTION_WORDS.values() for phrase in phrases]
    phrases += ["across past along"]
    phrases += [phrase for phrases in captions.RELATION_WORDS.values() for phrase in phrases]
    phrases += [*captions.FILLERS, *captions.PHRASINGS, *captions.PAIR_PHRASINGS, *captions.BOTH_PHRASINGS]
    phrases += ["a an the one of that is coloured colored colour color"]
    text = " ".join(phrases).lower()
    words = text.translate(str.maketrans("", "", ",:.")).replace("-", " ").split()
    return sorted({word for word in words if "{" not in word})


def build_tokenizer() -> PreTrainedTokenizerFast:
    pieces = [(PAD, 0.0), (END, 0.0), (UNKNOWN, 0.0)]
    pieces += [(SPACE + word, -1.0) for word in collect_words() if len(word) > 1 or word == "a"]
    pieces += [(SPACE, -8.0), *((letter, -10.0) for letter in string.ascii_lowercase + string.digits)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex("[^a-z0-9]+"), " "),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, model_max_length=512
    )


def tokenize(tokenizer: PreTrainedTokenizerFast, prompts: list[str], length: int) -> tuple[Tensor, Tensor]:
    """Ids [prompts, length] with padding at the end, at least one, and the number of tokens before it.

    The number includes the end token.
    """
    batch = tokenizer(
        prompts, padding="max_length", max_length=length - 1, truncation=True, return_tensors="pt"
    )
    return F.pad(batch.input_ids, (0, 1)), batch.attention_mask.sum(1)
