"""Command line: python3 -m ovq_client {generate,score,info,sessions,session-file} --help."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import os
import re
import sys
import typing
from pathlib import Path

# Silences the library's stderr lines about failed handshakes: the error has the same text.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from ovq_client import (
    Client, Conversation, Finished, Grammar, Options, OvqError, Prompt, Regex, Started, TokenChunk,
    __version__, session_file,
)


# Generation options that ovq-chat has as flags, too.
_SAMPLING = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed",
)
_MAX_SECONDS = 315_576_000_000  # the most that a protobuf Duration holds


def _whole(bits: int) -> typing.Callable[[str], int]:
    """Returns the parser of a whole number that a field of so many bits holds."""

    def parse(text: str) -> int:
        if re.fullmatch(r"\d{1,20}", text, re.ASCII) is None or int(text) >= 1 << bits:
            most = (1 << bits) - 1
            raise argparse.ArgumentTypeError(
                f"expected a whole number from 0 to {most}, got {text!r}"
            )
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to {_MAX_SECONDS}, got {text!r}")
    return seconds


def _text(args: argparse.Namespace) -> str:
    """Returns the text byte for byte, whatever the locale and the ends of its lines."""
    if args.text is not None:
        return args.text
    data = Path(args.file).read_bytes() if args.file else sys.stdin.buffer.read()
    return data.decode("utf-8")


def _file_text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None


def _json_schema(path: str) -> dict[str, typing.Any]:
    try:
        schema = json.loads(_file_text(path))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{path}: expected JSON: {error}") from None
    if not isinstance(schema, dict):
        raise argparse.ArgumentTypeError(f"{path}: expected a JSON object, the schema")
    return schema


def _grammar(path: str) -> Grammar:
    return Grammar(_file_text(path))


def _generate(client: Client, args: argparse.Namespace) -> None:
    names = (*_SAMPLING, "stop_strings", "constraint")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    text = _text(args)
    prompt: Prompt = text
    if args.messages or args.system:
        system = [("system", args.system)] if args.system else []
        prompt = Conversation([*system, ("user", text)])
    begun = False
    try:
        for event in client.generate(prompt, session_id=args.session, **options):
            if isinstance(event, TokenChunk):
                print(event.text, end="", flush=True)
                begun = True
            elif isinstance(event, Started):
                print(f"[seed {event.seed}]", file=sys.stderr)
            elif isinstance(event, Finished):
                usage = event.usage
                print(
                    f"\n[{event.reason.name.lower()} | prompt {usage.prompt_tokens} tokens | "
                    f"generated {usage.generated_tokens} tokens | state {usage.state_bytes} bytes]",
                    file=sys.stderr,
                )
    except OvqError:
        if begun:
            print(file=sys.stderr)  # The error begins a line, as the end of an answer does.
        raise


def _score(client: Client, args: argparse.Namespace) -> None:
    text = _text(args)
    score = client.score(text, memory=args.memory, max_centroids=args.max_centroids)
    total = -math.fsum(score.logprobs)
    n = len(score.logprobs)
    print(f"tokens scored      {n}")
    if n > 0:
        print(f"nats per token     {total / n:.6f}")
        print(f"perplexity         {math.exp(total / n):.4f}")
        print(f"bits per byte      {total / math.log(2) / len(text.encode()):.6f}")


def _info(client: Client, args: argparse.Namespace) -> None:
    info = client.model_info(args.position, memory=args.memory)
    for name, value in dataclasses.asdict(info).items():
        if name == "state_sizes":
            for size in value:
                print(
                    f"state at {size['position']:<13} {size['state_bytes']} bytes; "
                    f"full KV cache: {size['full_kv_cache_bytes']}"
                )
        else:
            print(f"{name:<22} {', '.join(map(str, value)) if type(value) is tuple else value}")


def _sessions(client: Client, args: argparse.Namespace) -> None:
    if args.delete:
        client.delete_session(args.delete)
    elif args.fork:
        for session in client.fork_session(args.fork, args.count, ttl=args.ttl):
            print(session.session_id)
    elif args.rewind:
        rewound = client.rewind_session(args.rewind, args.position)
        print(f"position {rewound.session.position}, {rewound.replay_tokens} tokens read again")
    elif args.export_:
        session_id, file = args.export_
        since = session_file.read(args.since).base if args.since is not None else None
        if args.since is not None and since is None:
            raise session_file.SessionFileError(f"{args.since}: has no tokens to go on from")
        with open(file, "xb") as out:
            try:
                out.writelines(client.export_session(session_id, since=since))
                out.flush()
            except BaseException:
                os.remove(file)  # a part of a session is of no use and in the way of the next try
                raise
    elif args.import_:
        with open(args.import_, "rb") as file:
            session = client.import_session(iter(lambda: file.read(1 << 20), b""), ttl=args.ttl)
        print(session.session_id)
    elif args.create:
        session = client.create_session(
            memory=args.memory, max_centroids=args.max_centroids, ttl=args.ttl
        )
        print(session.session_id)
    else:
        _list_sessions(client, args.server)


def _list_sessions(client: Client, server: str) -> None:
    count = 0
    for count, session in enumerate(client.list_sessions(), 1):
        print(
            f"{session.session_id} position {session.position} state {session.state_bytes} of "
            f"{session.state_bytes_cap} bytes {'busy' if session.busy else 'idle'}"
        )
    print(f"[{count} of {server} alone: behind a balancer, of one of its servers; ovq-admin asks all "
          "that it is given]", file=sys.stderr)


def _session_file(_: Client, args: argparse.Namespace) -> None:
    session = session_file.read(args.path)
    for path in args.join:
        delta = session_file.read(path)
        if isinstance(session, session_file.SessionDelta):
            raise session_file.SessionFileError(f"{args.path}: is a delta; --join adds to a file")
        if isinstance(delta, session_file.SessionFile):
            raise session_file.SessionFileError(f"{path}: is no delta")
        try:
            session = session_file.join(session, delta)
        except session_file.SessionFileError as error:
            raise session_file.SessionFileError(f"{path}: {error}") from None
    if isinstance(session, session_file.SessionFile) and args.join:
        with open(args.out, "xb") as out:
            out.write(session_file.encode(session))
    print(session_file.describe(session))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m ovq_client", description="Talks to ovq-server.")
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        default=os.environ.get("OVQ_SERVER") or "127.0.0.1:50051",
        help="default: $OVQ_SERVER or 127.0.0.1:50051",
    )
    parser.add_argument("--version", action="version", version=f"ovq_client {__version__}")
    for name, about in (
        ("tls-ca", "TLS, with the server's authority from this PEM file"),
        ("tls-cert", "TLS, with this PEM certificate for a server that asks for one"),
        ("tls-key", "PEM key of --tls-cert"),
        ("token-file", "file whose first line is the token for the server"),
    ):
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = argparse.ArgumentParser(add_help=False)
    source = text.add_mutually_exclusive_group()
    source.add_argument("--text", help="the text; default: --file or stdin")
    source.add_argument("--file", metavar="PATH")

    generate = commands.add_parser("generate", parents=[text], help="stream one answer")
    generate.set_defaults(run=_generate)
    generate.add_argument("--session", metavar="ID", help="continue this session")
    generate.add_argument(
        "--messages",
        action="store_true",
        help="the text is a user's message, written as the model's chat template does",
    )
    generate.add_argument(
        "--system", metavar="TEXT", help="a system message before it; means --messages"
    )
    kinds = typing.get_type_hints(Options)
    for name in _SAMPLING:
        kind = kinds[name] if kinds[name] is float else _whole(64 if name == "seed" else 32)
        generate.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N")
    generate.add_argument(
        "--stop",
        dest="stop_strings",
        action="append",
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )
    form = generate.add_mutually_exclusive_group()
    for flag, kind, metavar, about in (
        ("--json-schema", _json_schema, "FILE", "the answer is JSON of this schema"),
        ("--grammar", _grammar, "FILE", "the answer has the form of this grammar (GBNF)"),
        ("--regex", Regex, "REGEX", "the answer matches this regular expression"),
    ):
        form.add_argument(flag, dest="constraint", type=kind, metavar=metavar, help=about)

    score = commands.add_parser("score", parents=[text], help="how likely the model finds a text")
    score.set_defaults(run=_score)
    score.add_argument("--max-centroids", type=_whole(32), metavar="N")
    score.add_argument("--memory", metavar="NAME")

    info = commands.add_parser("info", help="the model, its state sizes and the server's limits")
    info.set_defaults(run=_info)
    info.add_argument("--position", type=_whole(64), action="append", default=[], metavar="TOKENS")
    info.add_argument("--memory", metavar="NAME", help="that is asked about")

    sessions = commands.add_parser("sessions", help="list, create, copy, rewind or delete sessions")
    sessions.set_defaults(run=_sessions)
    what = sessions.add_mutually_exclusive_group()
    what.add_argument("--create", action="store_true", help="make one and print its id")
    what.add_argument("--fork", metavar="ID", help="copy one and print the ids of the copies")
    what.add_argument("--rewind", metavar="ID", help="take one back to its first --position tokens")
    what.add_argument(
        "--export",
        dest="export_",
        nargs=2,
        metavar=("ID", "FILE"),
        help="write one to a new file (session-file prints what it holds)",
    )
    sessions.add_argument(
        "--since",
        metavar="EARLIER",
        type=Path,
        help="with --export: only what has come since this file or delta of it was exported "
        "(session-file --join makes a file of both)",
    )
    what.add_argument(
        "--import", dest="import_", metavar="FILE", help="make one from a file and print its id"
    )
    what.add_argument("--delete", metavar="ID")
    sessions.add_argument(
        "--max-centroids", type=_whole(32), metavar="N", help="of the new session"
    )
    sessions.add_argument("--memory", metavar="NAME", help="of the new session")
    sessions.add_argument("--ttl", type=_seconds, metavar="SECONDS", help="of the new sessions")
    sessions.add_argument("--count", type=_whole(32), metavar="N", help="of copies")
    sessions.add_argument(
        "--position", type=_whole(64), metavar="N", default=0, help="default: 0"
    )

    file = commands.add_parser("session-file", help="what a session file holds; asks no server")
    file.set_defaults(run=_session_file)
    file.add_argument("path", metavar="FILE", type=Path)
    file.add_argument(
        "--join",
        metavar="DELTA",
        type=Path,
        nargs="+",
        default=[],
        help="deltas that go on from FILE, one from the other, in their order",
    )
    file.add_argument("--out", metavar="NEW", type=Path, help="new file with all of them")
    return parser


def _connect(args: argparse.Namespace) -> Client:
    files = {name: getattr(args, name) for name in ("tls_ca", "tls_cert", "tls_key")}
    pem = {name: path.read_bytes() for name, path in files.items() if path is not None}
    token = None
    if args.token_file is not None:
        token = args.token_file.read_text("ascii").split("\n")[0].strip()
    return Client(args.server, **pem, token=token)


def _hint(error: OvqError, args: argparse.Namespace) -> str:
    """Returns the flag that is missing or wrong if the error shows it, in the words of
    clients/channel."""
    if error.code == grpc.StatusCode.UNAUTHENTICATED:
        if args.token_file is None:
            return "; no token was sent: --token-file is missing"
        return f"; the token in {args.token_file} (--token-file) is another"
    # The library says no more than that of a method that an address does not have.
    if error.code == grpc.StatusCode.UNIMPLEMENTED and not error.message:
        return "--server: this address serves other calls; expected that of --listen"
    if error.code != grpc.StatusCode.UNAVAILABLE:
        return ""
    if "http1.x server" in error.message:
        return "; --server: this address speaks HTTP/1.1; expected that of --listen, which speaks gRPC"
    if "certificate verify failed" in error.message or "CERTIFICATE_VERIFY" in error.message:
        if args.tls_ca is None:
            return "; the authorities known here do not vouch for the server: --tls-ca is missing"
        return (
            f"; the server's certificate is not one of those that {args.tls_ca} (--tls-ca) "
            "vouches for"
        )
    if "wrong version number" in error.message or "WRONG_VERSION" in error.message:
        return "; the server does not speak TLS: leave --tls-ca and --tls-cert out"
    if "Peer name" in error.message:
        return "; --server: expected a name that is in the server's certificate"
    # A server that requires TLS or a client certificate just closes the connection.
    if "failed to connect" not in error.message or "Socket closed" not in error.message:
        return ""
    if args.tls_ca is None and args.tls_cert is None:
        return "; it ended a connection without TLS: if it asks for TLS, --tls-ca is missing"
    if args.tls_cert is None:
        return (
            "; it ended a connection without a client's certificate: --tls-cert and --tls-key are "
            "missing"
        )
    return f"; it does not take the certificate in {args.tls_cert} (--tls-cert)"


def main() -> int:
    parser = _parser()
    args = parser.parse_args()
    if (args.tls_cert is None) != (args.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    if re.fullmatch(r".+:\d{1,5}", args.server) is None:
        parser.error(f"--server, OVQ_SERVER: expected HOST:PORT, got '{args.server}'")
    if args.run is _session_file and bool(args.join) != (args.out is not None):
        parser.error("--join and --out go together")
    if args.run is _sessions and args.since is not None and not args.export_:
        parser.error("--since goes with --export")
    try:
        with _connect(args) as client:
            args.run(client, args)
    except OvqError as error:
        request = f" (request {error.request_id})" if error.request_id else ""
        print(f"ovq_client: {error}{_hint(error, args)}{request}", file=sys.stderr)
        return 1
    except (OSError, UnicodeError, session_file.SessionFileError) as error:
        print(f"ovq_client: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def run() -> None:
    """Entry point of the program ovq-client."""
    # A terminal that is not of UTF-8 shows ? for characters that it has not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())


if __name__ == "__main__":
    run()
