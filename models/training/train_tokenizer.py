#!/usr/bin/env python3
"""Trains the byte-level BPE tokenizer and writes tokenizer.json and tokenizer_config.json.

    python3 train_tokenizer.py --text TEXT_FILE --out FOLDER [--vocab 1024]

Needs only the package tokenizers. Deterministic: the same text gives the same files.
"""
import argparse
import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def train(chapters, vocab):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        ["\n".join(c) + "\n" for c in chapters],
        trainers.BpeTrainer(vocab_size=vocab, special_tokens=[BOS, EOS], show_progress=False,
                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    # a text gets exactly one begin-of-text and no end-of-text
    tok.post_processor = processors.TemplateProcessing(
        single=BOS + " $A", pair="%s $A %s:1 $B:1" % (BOS, BOS), special_tokens=[(BOS, tok.token_to_id(BOS))])
    return tok


def config(tok, context):
    added = {str(tok.token_to_id(t)): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                                       "single_word": False, "special": True} for t in (BOS, EOS)}
    return {"added_tokens_decoder": added, "bos_token": BOS, "clean_up_tokenization_spaces": False,
            "eos_token": EOS, "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": context, "tokenizer_class": "PreTrainedTokenizerFast"}


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--text", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--vocab", type=int, default=1024)
    ap.add_argument("--context", type=int, default=512)
    a = ap.parse_args()
    training, held = corpus.split(corpus.chapters(a.text))
    tok = train(training, a.vocab)
    os.makedirs(a.out, exist_ok=True)
    tok.save(os.path.join(a.out, "tokenizer.json"))
    with open(os.path.join(a.out, "tokenizer_config.json"), "w", encoding="utf-8") as fh:
        json.dump(config(tok, a.context), fh, indent=2)
        fh.write("\n")
    for label, part in (("training", training), ("held-out", held)):
        text = ["\n".join(c) + "\n" for c in part]
        n = sum(len(tok.encode(t, add_special_tokens=False).ids) for t in text)
        print("%s: %d chapters, %d bytes, %d tokens, %.3f bytes a token"
              % (label, len(part), sum(map(len, text)), n, sum(map(len, text)) / n))


if __name__ == "__main__":
    main()
