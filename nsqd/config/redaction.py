"""Texts that may hold secrets, made fit for a log line: cut short, secrets hidden.

    http://user:password@host/auth?key=1   http://***@host/auth?***     no query of a whole URL
    /pub?topic=t&access_token=abc          /pub?topic=t&access_token=***

The text may be that of a hostile client, so all of it is linear: no pattern here can look at a
character more than a few times.
"""

import re

# Of one line; a URL may have 8 KiB, a command 16 KiB.
MAX_LINE_CHARACTERS = 4096

_HIDDEN = "***"
# Ends at the slash that the next one needs.
_USER_OF_URL = re.compile(r"://[^/?#\s]*@")
_WORD = re.compile(r"[^\s\"']+")
# Possessive: a name ends only at a character that cannot be in it, so there is one way to match.
_PARAMETER = re.compile(r"([?&;])([^=&;?\s]++)=([^&;#\s\"']*+)")
_TELLING_NAME = re.compile("token|secret|passw|api_?key|auth|signature|credential", re.IGNORECASE)
# Reversed, the text before an @ up to a character that cannot be in user:password.
_REVERSED_USER = re.compile(r"[^\s/@\"']{1,321}")
_HOST_BEGIN = re.compile(r"[\w\[]")
# The end of a cut text that may be the beginning of user:password@.
_CUT_USER = re.compile(r"://[^/?#\s]*\Z")


def redact(text: str) -> str:
    """Return the text without the passwords of URLs and the tokens of query strings."""
    if "@" in text:
        text = _hide_users(_USER_OF_URL.sub(f"://{_HIDDEN}@", text))
    if "?" in text and "://" in text:
        text = _WORD.sub(_hide_query, text)
    if "=" in text and ("?" in text or "&" in text or ";" in text):
        text = _PARAMETER.sub(_hide_parameter, text)
    return text


def redact_argument(text: str) -> str:
    """Return an argument of a command line, or an address: also without any query string."""
    before, mark, _ = redact(text).partition("?")
    return before + mark + _HIDDEN if mark else before


def shorten_line(line: str) -> str:
    """Cut a long line, so that no part of a secret is left at the cut."""
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    head = _CUT_USER.sub("", line[:MAX_LINE_CHARACTERS].rstrip("@"))
    run = _REVERSED_USER.match(head[::-1])
    if run is not None and ":" in run[0]:
        head = head[: -len(run[0])]
    return f"{head}... ({len(line) - len(head)} more characters)"


def _hide_query(match: re.Match[str]) -> str:
    word = match[0]
    scheme_end = word.find("://")
    begin = word.find("?", scheme_end)
    return word if scheme_end < 0 or begin < 0 else f"{word[: begin + 1]}{_HIDDEN}"


def _hide_parameter(match: re.Match[str]) -> str:
    if _TELLING_NAME.search(match[2]) is None:
        return match[0]
    return f"{match[1]}{match[2]}={_HIDDEN}"


def _hide_users(text: str) -> str:
    """Hide user:password of addresses without a scheme: the text before each @."""
    *befores, last = text.split("@")
    parts = []
    for index, before in enumerate(befores):
        after = last if index + 1 == len(befores) else befores[index + 1]
        run = _REVERSED_USER.match(before[:-322:-1])
        if run is not None and ":" in run[0] and _HOST_BEGIN.match(after):
            word = run[0][::-1]
            user = word.partition(":")[0]
            begin = max(user.rfind("="), user.rfind("(")) + 1
            if begin < len(user) and len(user) + 1 < len(word):  # neither is empty
                before = before[: len(before) - len(word) + begin] + _HIDDEN
        parts.append(before)
    return "@".join([*parts, last])
