"""The command `nsq`: find the command, parse its arguments, run it, return its exit code.

| code | |
| --- | --- |
| 0 | done; for `tail` also after SIGINT or SIGTERM, and when the reader of stdout has gone |
| 1, 2 | failed; wrong usage |
| 3 | no such topic, channel or node, or the daemon lacks the feature |
| 4 | `--wait` or `--timeout` was over first, or fewer than `-n` came |
| 5 | not allowed: AUTH, token, certificate |
| 6 | done in part: some nodes failed |
| 130, 143 | interrupted before the end of the input |

`nsq check` has the codes of Nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from nsqd.cli.commands import COMMANDS, COMPLETE, GROUPS, NAGIOS_UNKNOWN, make_parser
from nsqd.cli.output import CliError, ExitCode, did_you_mean


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_json = "--json" in arguments or os.environ.get("NSQ_OUTPUT") == "json"
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except CliError as error:
        if arguments[0] == "check":
            # Nagios reads stdout, and 2 would mean that the service is down.
            print(f"UNKNOWN - {str(error).splitlines()[0]}")
            return NAGIOS_UNKNOWN
        _print_error(error, is_json=is_json)
        return error.code
    except BrokenPipeError:
        # The reader has gone, as with `| head`. Python would complain again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except OSError as error:
        # Of stdout, as a rule: a full disk. What a command knows more about, it has told by itself.
        _print_error(CliError(str(error)), is_json=is_json)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return ExitCode.DONE if arguments else ExitCode.USAGE
    name, *rest = arguments
    if name == "--version":
        name = "version"
    if name == COMPLETE:
        # Imported here: only a shell calls it, and it is no command for people.
        from nsqd.cli.setup.names import complete

        return complete(rest)
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or "; see nsq --help"
        raise CliError(f"no command {name!r}{hint}", ExitCode.USAGE)
    parser, module = make_parser(name)
    options = parser.parse_intermixed_args(rest) if name == "pub" else parser.parse_args(rest)
    if os.environ.get("NSQ_OUTPUT") == "json" and hasattr(options, "json"):
        options.json = True
    # The modules are loaded: they stay, and nobody need look at them again.
    gc.freeze()
    gc.enable()
    code: int = module.run(options, name)
    return code


def usage() -> str:
    """Return the help of `nsq` itself."""
    lines = []
    for title, commands in GROUPS.items():
        lines += ["", title]
        lines += [f"  {name:<12}{help_text}" for name, (_, help_text) in commands.items()]
    return "\n".join(
        [
            "usage: nsq COMMAND [ARGUMENT...]",
            "",
            "Talk to nsqd and nsqlookupd. Without an address: $NSQD_TCP_ADDRESS, the selected",
            "context, or 127.0.0.1.",
            *lines,
            "",
            "nsq COMMAND --help shows the flags and examples of a command.",
        ]
    )


def _print_error(error: CliError, *, is_json: bool) -> None:
    text = str(error)
    if is_json:
        import json

        text = json.dumps({"error": text, "code": int(error.code)})
        print(text, file=sys.stderr)
    else:
        print(f"nsq: {text}", file=sys.stderr)
