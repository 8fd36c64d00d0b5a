"""Random phrases, names and instructions."""

from chat import words


def phrase(random, most=3):
    """Returns a few words that a text or a search may have."""
    chosen = []
    for _ in range(random.randint(1, most)):
        pool = random.choice([words.NOUNS, words.COLORS, words.PROSE, words.ANIMALS, words.FOODS, None])
        chosen.append(random.choice(pool) if pool else words.invented(random))
    return " ".join(chosen)


def file_name(random):
    stem = random.choice(words.FILES) if random.random() < 0.7 else words.invented(random)
    if random.random() < 0.12:
        stem += f"_{random.choice(words.FILES)}"
    folder = random.choice(words.FOLDERS) + "/" if random.random() < 0.3 else ""
    return f"{folder}{stem}.{random.choice(words.EXTENSIONS)}"


def place(random):
    return random.choice(words.CITIES) if random.random() < 0.75 else words.invented(random, True)


def person(random):
    return random.choice(words.NAMES) if random.random() < 0.7 else words.invented(random, True)


def number(random, digits=4):
    return str(random.randint(1, 10 ** random.randint(1, digits) - 1))


def prose_sentence(random):
    w = [random.choice(words.PROSE) for _ in range(random.randint(4, 14))]
    lead = random.choice(["Always", "Never", "If you are asked,", "You should", "Do not", "When in doubt,", "The user",
                          "Before you answer,", "Remember:", "Important:", "Use", "For example,", "In general,"])
    if random.random() < 0.2:
        w.insert(len(w) // 2, random.choice([f"`{file_name(random)}`", f"\"{phrase(random, 2)}\"", f"({phrase(random, 2)})",
                                             number(random), words.invented(random)]))
    return f"{lead} {' '.join(w)}."


def prose(random, n_sentences):
    """Returns instructions that mean nothing, in paragraphs, lists and sections."""
    lines = []
    while n_sentences > 0:
        form = random.random()
        if form < 0.15:
            lines.append("\n" + "#" * random.randint(1, 3) + " " + phrase(random, 3).capitalize())
        elif form < 0.5:
            lines.append("- " + prose_sentence(random))
        elif form < 0.55:
            lines.append(f"<{random.choice(words.NOUNS)}>\n{prose_sentence(random)}\n</{random.choice(words.NOUNS)}>")
        else:
            n = min(n_sentences, random.randint(1, 4))
            lines.append(" ".join(prose_sentence(random) for _ in range(n)))
            n_sentences -= n - 1
        n_sentences -= 1
    return "\n".join(lines).strip()
