"""Attacks by the forms of answers (docs/constraints.md) over HTTP, for hostile.py; see http_attacks.py."""

import functools
import itertools

from http_attacks import again, completion, request, send_each

SOURCE = 250_000  # bytes, below the limit of a form
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def each_new(make, threads=8):
    """Sends make(i) for i = 0, 1, ... on new connections, so that no form is known."""
    def attack(address, count):
        numbers = itertools.count()
        send_each(lambda: make(next(numbers)), threads, True, address, count)
    return attack


def short(**fields):
    return request("/v1/completions", {"prompt": "x", "max_tokens": 1, **fields}, ("Connection: close",))


def with_schema(make):
    """Requests for answers of make()'s schema, each with another description."""
    body = functools.cache(make)  # made by the process that attacks, not by every one that knows the names

    def made(i):
        schema = {**body(), "description": str(i)}
        return short(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    return made


def with_regex(make):
    return lambda i: short(structured_outputs={"regex": make() + f"x{i}"})


def with_grammar(make):
    text = functools.cache(make)
    return lambda i: short(structured_outputs={"grammar": text() + f"\nunused{i} ::= \"x\"\n"})


def with_choices(i):
    return short(structured_outputs={"choice": [f"{i} {k} " + "x" * 50 for k in range(4096)]})


# --- schemas ---

def ref_cycles():
    """Definitions that are each all of the next, the last the first."""
    return {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{(i + 1) % 2000}"}]}
                                            for i in range(2000)}}


def ref_chains():
    """Doubles with each of 30 definitions, if one took it to pieces."""
    return {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(30)},
        "d30": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50)}}}}


def many_alternatives():
    return {"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i + 1}},
                       "required": [f"p{i}"]} for i in range(2400)]}


def products_of_alternatives():
    return {"allOf": [{"anyOf": [{"type": "string", "minLength": i, "maxLength": 100 + k} for i in range(22)]}
                      for k in range(22)]}


def deep(i):
    body = short(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}, seed=i)
    body = body.split(b"\r\n\r\n", 1)[1].replace(b"{}", b'{"items":' * 5000 + b"{}" + b"}" * 5000)
    return request("/v1/completions", body, ("Connection: close",))


def huge_enum():
    return {"enum": [f"value {i} " + "x" * 8 for i in range(SOURCE // 25)]}


def large_counts():
    return {"type": "array", "items": {"type": "string", "pattern": "^([a-z]{1,900}-){1,9}[0-9]{3,300}$"},
            "minItems": 1000, "maxItems": 100_000}


def wide_objects():
    return {"type": "object", "properties": {f"property {i}": {"type": ["string", "number", "null"]}
                                             for i in range(4000)}}


def patterns_together():
    return {"type": "string", "allOf": [{"pattern": f"^[a-c]*a[a-c]{{{n}}}$"} for n in range(2, 12)]}


def divisors():
    return {"type": "array", "prefixItems": [{"type": "number", "multipleOf": 0.997 - i / 1000, "minimum": -1e9}
                                             for i in range(200)]}


# --- grammars ---

def many_rules():
    return "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1} "b" | r{i + 1} "c"?' for i in range(900)) + '\nr900 ::= "x"'


def doubling_rules():
    return "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} \"x\" | r{i + 1} \"y\"" for i in range(60)) + '\nr60 ::= "a"'


def wide_classes():
    """Classes of every second character of many blocks, each rule with others."""
    return "\n".join(["root ::= " + " | ".join(f"r{i}" for i in range(60))] + [
        f"r{i} ::= [" + "".join(chr(0x1000 + i + 2 * k) for k in range(1200)) + "]+ \"" + str(i) + '"' for i in range(60)])


# --- forms with masks of much work ---

def much_work():
    """Each of 52 letters enters four thousand choices of one rule, and no two places are the same."""
    n = 4000
    nested = "\n".join(f'l{c} ::= "{c}" wide "{k}"' for k, c in enumerate(LETTERS))
    return ('root ::= "." | ' + " | ".join(f"l{c}" for c in LETTERS) + "\n" + nested + "\nwide ::= "
            + " | ".join(f"c{i}" for i in range(n)) + "\n" + "\n".join(f"c{i} ::= root | root" for i in range(n)))


def many_stacks():
    """Five hundred texts in parallel, which only their ends tell apart."""
    n = 500
    return ("root ::= " + " | ".join(f"s{i}" for i in range(n)) + "\n"
            + "\n".join(f's{i} ::= [a-z ]{{1,100000}} "." n{i}\nn{i} ::= "[" n{i} "]" | "{i};"' for i in range(n)))


def deep_stacks():
    """Texts in parallel, each nested as deep as a place has room for."""
    n = 6
    return ("root ::= " + " | ".join(f"s{i}" for i in range(n)) + "\n"
            + "\n".join(f's{i} ::= "(" s{i}{{1,3}} "{i};" | "[" [a-z]{{0,1000}} "]"' for i in range(n)))


def ambiguous_counts():
    return 'root ::= ("a" | "aa" | "aaa" | "aaaa" | "b"){0,100000} "."'


def open_answers(grammar, **fields):
    return again(completion(n=64, structured_outputs={"grammar": grammar}, **fields), 2, read_all=True)


ATTACKS = {
    "HTTP: schemas, cycles of $ref": each_new(with_schema(ref_cycles)),
    "HTTP: schemas, $ref that doubles": each_new(with_schema(ref_chains)),
    "HTTP: schemas, 2,400 alternatives": each_new(with_schema(many_alternatives)),
    "HTTP: schemas, products of alternatives": each_new(with_schema(products_of_alternatives)),
    "HTTP: schemas, 5,000 levels": each_new(deep),
    "HTTP: schemas, enum of 10,000": each_new(with_schema(huge_enum)),
    "HTTP: schemas, large counts": each_new(with_schema(large_counts)),
    "HTTP: schemas, 4,000 properties": each_new(with_schema(wide_objects)),
    "HTTP: schemas, patterns together": each_new(with_schema(patterns_together)),
    "HTTP: schemas, divisors": each_new(with_schema(divisors)),
    "HTTP: regexes of exponential automata": each_new(with_regex(lambda: "[ab]*a[ab]{13}")),
    "HTTP: regexes of large counts": each_new(with_regex(lambda: "(a{1,100}b{1,100}){1,200}")),
    "HTTP: grammars of 900 rules": each_new(with_grammar(many_rules)),
    "HTTP: grammars that double": each_new(with_grammar(doubling_rules)),
    "HTTP: grammars of wide classes": each_new(with_grammar(wide_classes)),
    "HTTP: 4,096 choices": each_new(with_choices),
    "HTTP: forms without end": each_new(lambda i: short(structured_outputs={"regex": f"[a-z]{{5}}{i}"}, max_tokens=4)),
    "HTTP: n=64, masks of much work": open_answers(much_work()),
    "HTTP: n=64, 500 stacks": open_answers(many_stacks()),
    "HTTP: n=64, deep stacks": open_answers(deep_stacks(), logit_bias={str(ord("(")): 50}),
    "HTTP: n=64, ambiguous counts": open_answers(ambiguous_counts()),
    "HTTP: n=64, new forms of much work": each_new(lambda i: completion(
        n=64, max_tokens=64, structured_outputs={"grammar": much_work() + f'\nunused{i} ::= "x"'}), 4),
}
