"""Trains a tokenizer and writes its tokenizer.json: that of the chat model, on scripted conversations, or one on texts."""

import argparse
import collections
import json
import os
import re

from chat import words
from chat.bpe import MARKS, SPECIAL, Tokenizer, learn_merges, pieces
from conversations import conversation_text

PROSE_WEIGHT = 20  # every word of ordinary prose counts as if it occurred so often


def count_pieces(n_conversations):
    """Returns {piece: occurrences} in conversations of several lengths."""
    counts = collections.Counter()
    added = re.compile("|".join(map(re.escape, SPECIAL + MARKS)))
    for seed in range(n_conversations):
        for part in added.split(conversation_text(f"tokenizer {seed}", 400 if seed % 2 else 1500)):
            counts.update(pieces(part))
    for word in words.PROSE:
        counts[word] += PROSE_WEIGHT
        counts[word.capitalize()] += PROSE_WEIGHT // 4
    return counts


def count_text_pieces(folder):
    """Returns {piece: occurrences} in the .txt files of a folder."""
    counts = collections.Counter()
    for name in sorted(os.listdir(folder)):
        if name.endswith(".txt"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                counts.update(pieces(file.read()))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--conversations", type=int, default=6000)
    parser.add_argument("--texts", metavar="FOLDER", help="in place of conversations: of .txt files, as package_texts.py makes them")
    parser.add_argument("--out", required=True, help="model folder")
    args = parser.parse_args()
    n_merges = args.vocab_size - 256 - len(SPECIAL + MARKS)
    counts = count_text_pieces(args.texts) if args.texts else count_pieces(args.conversations)
    tokenizer = Tokenizer(learn_merges(counts, n_merges))
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer.to_json(), file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    print(f"{path}: {tokenizer.size} tokens")


if __name__ == "__main__":
    main()
