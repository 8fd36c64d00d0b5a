"""Shell commands, what they print, and how a tool wraps that."""

import json

from chat import words
from chat.prose import file_name, number, phrase


def _text(random):
    return phrase(random, 4)


def _to_file(random):
    """Commands that write into a file: what agents are asked first."""
    text, path, sign = _text(random), file_name(random), random.choice([">", ">", ">", ">>", "> /tmp/", "| tee"])
    path = sign.split()[-1] + path if sign.endswith("/") else path
    sign = sign.split()[0] if sign.endswith("/") else sign
    return random.choice([f"echo {text} {sign} {path}", f"echo {text} {sign} {path}", f"echo '{text}' {sign} {path}",
                          f'echo "{text}" {sign} {path}', f'echo "{text}" {sign} {path}', f"printf '{text}\\n' {sign} {path}", f"cat {file_name(random)} {sign} {path}",
                          f"sort {file_name(random)} {sign} {path}", f"date {sign} {path}"])


def _of_files(random):
    a, b, folder, name = file_name(random), file_name(random), random.choice(words.FOLDERS), words.invented(random)
    return random.choice([f"cat {a}", f"cp {a} {b}", f"mv {a} {b}", f"rm -f {a}", f"rm -rf {folder}/{name}", f"touch {a}",
                          f"mkdir -p {folder}/{name}", f"chmod +x {a}", f"head -n {number(random, 2)} {a}", f"wc -l {a}",
                          f"tail -{number(random, 2)} {a}", f"ls -la {folder}", f'find . -name "*.{random.choice(words.EXTENSIONS)}"',
                          f"diff {a} {b}", f"sed -i 's/{phrase(random, 1)}/{phrase(random, 1)}/{random.choice(['', 'g'])}' {a}",
                          f"sed -n {number(random, 2)},{number(random, 3)}p {a}", f"ln -s {a} {name}",
                          f"grep -rn {phrase(random, 1)} {folder}", f'grep -c "{phrase(random, 2)}" {a}'])


def _of_projects(random):
    name, word, folder = words.invented(random), random.choice(words.PROSE), random.choice(words.FOLDERS)
    return random.choice(["make", f"make {word}", f"make -j{random.randint(2, 16)} {name}", "git status", "git diff", "git log --oneline",
                          f"git add {file_name(random)}", f'git commit -m "{_text(random)}"', f"git checkout -b {name}", "npm test",
                          f"npm run {word}", f"python3 {file_name(random)}", f"python3 -m {random.choice([name, word + '.' + name])} {random.choice(['--' + word, number(random)])}", f"./{name}.sh",
                          f"./{folder}/{name} {number(random)}", f"cargo {word}", f"go {word} ./...", f"cmake --build {folder}",
                          f"pytest -q {folder}", f"{name} --{word}={number(random)}", f"curl -s http://localhost:{number(random)}/{word}",
                          f"docker {word} {name}", f"{name.upper()}={number(random)} ./{name}", f"cd {folder}/{name}", "pwd", "whoami",
                          f"echo {_text(random)}", f"echo '{_text(random)}'", f'echo "{_text(random)}"', f"echo ${name.upper()}"])


def simple(random):
    return random.choice([_to_file, _to_file, _of_files, _of_projects])(random)


def command(random):
    """Returns a command of the kinds that people give to agents, from `pwd` to pipes."""
    made = simple(random)
    if random.random() < 0.12:
        made = f"{made} {random.choice(['&&', '&&', ';', '||'])} {simple(random)}"
    if random.random() < 0.06:
        made += random.choice([f" | grep {phrase(random, 1)}", " | wc -l", f" | head -n {number(random, 1)}", " 2>&1", " 2>/dev/null", " | sort"])
    return made


def output(random):
    """Returns what a command prints, which may be nothing."""
    if random.random() < 0.45:
        return ""
    return "\n".join(random.choice([phrase(random, 4), phrase(random, 4), file_name(random), number(random)])
                     for _ in range(random.randint(1, 3)))


_LABELS = {"Command": None, "Directory": lambda r: f"/{words.invented(r)}/{words.invented(r)}",
           "Chunk": lambda r: f"{r.randrange(1 << 24):06x}", "Wall time": lambda r: f"{r.random() * 2:.{r.randint(1, 4)}f} seconds",
           "Duration": lambda r: f"{r.randint(1, 900)} ms", "Signal": lambda r: "(none)", "Process": lambda r: str(r.randint(100, 99999)),
           "Background": lambda r: "(none)", "Token count": lambda r: str(r.randint(0, 99)), "Session": lambda r: words.invented(r),
           "Error": lambda r: "(none)", "Shell": lambda r: r.choice(["bash", "sh", "zsh"]), "Process group": lambda r: number(r, 5)}


def wrapped(random, made, printed, failed=False):
    """Returns a tool's result: the output `printed` of the command `made`, bare or among what agents' tools tell."""
    empty = random.choice(["", "(empty)", "(no output)", "(none)"])
    form, code = random.random(), random.randint(1, 127) if failed else 0
    if form < 0.3:
        return printed or empty
    if form < 0.4:
        return json.dumps({"output": printed, "metadata": {"exit_code": code, "duration_seconds": random.randint(0, 30) / 10}})
    if form < 0.45:
        return f"<output>\n{printed or empty}\n</output>\n<exit_code>{code}</exit_code>"
    lines = [f"{label}: {make(random) if make else made}" for label, make in
             random.sample(list(_LABELS.items()), random.randint(1, 6))]
    lines.insert(random.randint(0, len(lines)), random.choice([f"Exit code: {code}", f"Exit Code: {code}", f"Process exited with code {code}",
                                                               f"Status: {code}"]))
    shown = f"Output: {printed or empty}" if random.random() < 0.5 else f"Output:\n{printed or empty}"
    if random.random() < 0.5:
        lines.append(shown)
    else:
        lines.insert(random.randint(0, len(lines)), shown)
    return "\n".join(lines)
