"""Scripted conversations: the tokenizer, what they hold, what is held out, the source and the measure."""

import concurrent.futures
import json
import os
import random
import sys
import unicodedata
import unittest

import numpy as np
import torch

from support import TRAINING

from chat.bpe import load_tokenizer, pieces
from chat.render import message_parts, system_parts
from conversations import Conversation, conversation_text, is_held_out, make_sample
from make_chat_golden import GOLDEN, golden_text
from sources import NO_TARGET, ConversationSource, answers_right

TOKENIZER = load_tokenizer(os.path.join(os.path.dirname(TRAINING), "models", "scripted-chat", "tokenizer.json"))


class Echo(torch.nn.Module):
    """Predicts the token that follows in a given text, but for one place."""

    def __init__(self, ids, wrong=None):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.ids, self.wrong = ids, wrong

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, TOKENIZER.size)
        for i, following in enumerate(self.ids[1:]):
            logits[0, i, following if i + 1 != self.wrong else 0] = 1
        return logits


class TokenizerTest(unittest.TestCase):
    def test_decoding_gives_the_text_again(self):
        for text in ("", "Hi there", "a\n\n  b\t c", "Grüße, 東京 🙂 x_y", '{"a": ["b", {}]}', "<|im_start|>user\n<think>"):
            self.assertEqual(TOKENIZER.decode(TOKENIZER.encode(text)), text)
            self.assertEqual("".join(pieces(text)), text)

    def test_a_word_has_the_same_tokens_in_a_sentence_and_in_json(self):
        for word in ("Zorbitan", "kettle", "notes", "Paris"):
            ids = TOKENIZER.encode(word)
            for text in (f"weather in {word}", f'{{"city": "{word}"}}', f"{word}, please", f"`{word}`.", f"get_{word}"):
                joined = " ".join(map(str, TOKENIZER.encode(text)))
                self.assertIn(" ".join(map(str, ids)), joined, text)

    def test_parts_have_the_tokens_of_the_whole_text(self):
        for seed in range(20):
            conversation = Conversation(random.Random(seed), 600)
            parts = system_parts(conversation.system, [tool.schema for tool in conversation.tools])
            for _ in range(3):
                for message in conversation.next_turn().messages:
                    parts += message_parts(message)
            apart = [i for text, _ in parts for i in TOKENIZER.encode(text)]
            self.assertEqual(apart, TOKENIZER.encode("".join(text for text, _ in parts)))

    def test_letters_and_numbers_are_those_of_the_servers_expression(self):
        """Its \\p{L} and \\p{N} are categories, which Python's \\w and \\d are not, and its \\s has not Python's \\x1c to \\x1f."""
        self.assertEqual(pieces("4 m\u00b2 \u00bd"), ["4", " ", "m", "\u00b2", " ", "\u00bd"])
        self.assertEqual(pieces("a\x1c b"), ["a", "\x1c ", "b"])
        for char in map(chr, range(0xa1, sys.maxunicode + 1)):
            kind = unicodedata.category(char)[0]
            if kind in "LNMPS":
                expected = [f"a{char}b"] if kind == "L" else ["a", char, "b"]
                self.assertEqual(pieces(f"a{char}b"), expected, hex(ord(char)))

    def test_added_tokens_have_the_first_ids(self):
        self.assertEqual(TOKENIZER.encode("<|im_end|>"), [2])
        self.assertEqual(TOKENIZER.size, 2048)


class ConversationTest(unittest.TestCase):
    def test_seeds_decide_all_and_give_different_conversations(self):
        texts = [conversation_text(seed) for seed in range(200)]
        self.assertEqual(texts, [conversation_text(seed) for seed in range(200)])
        self.assertEqual(len(set(texts)), 200)

    def test_no_turn_that_is_held_out_is_trained_on(self):
        for seed in range(50):
            conversation = Conversation(random.Random(seed), 600)
            for wanted in (False, True, False):
                turn = conversation.next_turn(wanted, tries=5000)
                self.assertEqual(is_held_out(turn.said), wanted)
                self.assertTrue(any(turn.said in message["content"] for message in turn.messages[:2]))

    def test_calls_fit_their_schemas(self):
        n_calls, n_parallel = 0, 0
        for seed in range(300):
            conversation = Conversation(random.Random(seed), 900)
            tools = {tool.name: tool.schema["parameters"] for tool in conversation.tools}
            for _ in range(4):
                for message in conversation.next_turn().messages:
                    calls = message.get("tool_calls", [])
                    n_parallel += len(calls) > 1
                    for call in calls:
                        n_calls += 1
                        wanted = tools[call["name"]]
                        self.assertEqual(set(call["arguments"]), set(wanted.get("required", [])))
                        for name, value in call["arguments"].items():
                            kinds = {"string": str, "integer": int, "array": list}
                            self.assertIsInstance(value, kinds[wanted["properties"][name]["type"]])
        self.assertGreater(n_calls, 300)
        self.assertGreater(n_parallel, 5)

    def test_what_was_told_is_recalled(self):
        conversation = Conversation(random.Random(3), 300)
        conversation.thinks, conversation.told = False, {"boss": "Zorba"}
        answers = {conversation.recall().messages[1]["content"] for _ in range(50)}
        self.assertIn("Your boss is Zorba.", answers)
        self.assertLess(len([answer for answer in answers if answer.startswith("Your ")]), 2)

    def test_the_golden_text_of_the_template_is_current(self):
        with open(GOLDEN, encoding="utf-8") as file:
            self.assertEqual(file.read(), golden_text(), "run make_chat_golden.py")
        openings = [case["text"].rsplit("<|im_start|>", 1)[1] for case in json.loads(golden_text())]
        self.assertIn("assistant\n<think>\n", openings)
        self.assertIn("assistant\n", openings)


class SampleTest(unittest.TestCase):
    def test_the_models_own_words_are_learned(self):
        for seed in range(20):
            sample = make_sample(seed, 512, TOKENIZER)
            self.assertLessEqual(len(sample.ids), 512)
            learned = np.zeros(len(sample.ids), bool)
            for begin, end, _ in sample.answers:
                learned[begin:end] = True
                self.assertEqual(TOKENIZER.decode(sample.ids[end - 1:end]), "<|im_end|>")
                opening = TOKENIZER.decode(sample.ids[:begin])
                self.assertTrue(opening.endswith(("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")))
            self.assertEqual(learned.tolist(), sample.learned)

    def test_a_held_out_sample_scores_its_last_turn(self):
        for seed in range(20):
            sample = make_sample(seed, 768, TOKENIZER, True)
            behind = TOKENIZER.decode(sample.ids[sample.answers[0][0]:])
            self.assertNotIn("<|im_start|>user", behind)
            self.assertEqual(sum(sample.learned), sum(end - begin for begin, end, _ in sample.answers))


class SourceTest(unittest.TestCase):
    def make(self):
        return ConversationSource(TOKENIZER, 600, 5, 0.25)

    def test_a_restored_source_goes_on(self):
        first, second = self.make(), self.make()
        first.next(256, 2, 0)
        expected = first.next(512, 3, 0)
        second.restore({"n_batches": 1})
        for mine, theirs in zip(second.next(512, 3, 0), expected):
            np.testing.assert_array_equal(mine, theirs)

    def test_targets_follow_inputs_and_weights_mark_what_is_learned(self):
        inputs, targets, weights = self.make().next(512, 3, 0)
        for row in range(3):
            n = int((targets[row] != NO_TARGET).sum())
            np.testing.assert_array_equal(inputs[row, 1:n], targets[row, :n - 1])
            self.assertEqual(set(weights[row, :n]), {np.float32(0.25), np.float32(1)})
            self.assertEqual(weights[row, n:].sum(), 0)
            self.assertEqual(targets[row][weights[row] == 1][-1], TOKENIZER.encode("<|im_end|>")[0])

    def test_an_answer_is_right_if_every_token_is(self):
        sample = make_sample(7, 600, TOKENIZER, True)
        begin, end, _ = sample.answers[0]
        self.assertTrue(all(answers_right(Echo(sample.ids), sample)))
        for wrong in (begin, end - 1):
            self.assertFalse(answers_right(Echo(sample.ids, wrong), sample)[0])
        self.assertTrue(all(answers_right(Echo(sample.ids, begin - 1), sample)))

    def test_the_measure_is_the_share_of_right_answers(self):
        source = self.make()
        source._sample = [make_sample(7, 600, TOKENIZER, True)] * 2
        sample = source._sample[0]
        with concurrent.futures.ThreadPoolExecutor(1) as workers:
            self.assertEqual(source.measure(Echo(sample.ids), workers), 1)
            shares = source.measure(Echo(sample.ids, sample.answers[0][0]), workers)
        self.assertEqual(shares, 1 - 1 / len(sample.answers))


if __name__ == "__main__":
    unittest.main()
