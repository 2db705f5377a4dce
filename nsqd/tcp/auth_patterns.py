"""The patterns of an auth server's reply: RE2's syntax, matched in linear time.

Auth servers are written against Go's regexp, which has no lookaround and no backreferences and so
never backtracks. Python's `re` differs in syntax (it takes `[[:alpha:]]` for a set of colons and
letters) and backtracks: `^([a-z]+\\.?)+$` and one well-chosen topic name would hold the event loop
for hours. So patterns are compiled to an automaton that is in all its states at once.

What is matched are topic and channel names, hence ASCII; a set of characters is an int with one bit
for each of the 128. Only "does it occur" is asked, so greediness and capturing mean nothing here.
"""

import re
import unicodedata
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

MAX_INSTRUCTIONS = 10_000
MAX_NESTING = 100
MAX_REPEAT = 1_000  # RE2's own.


class PatternError(ValueError):
    """The text is no regular expression in RE2's syntax, or too big a one."""


class _Kind(Enum):
    CHARACTER = auto()
    SPLIT = auto()
    ASSERTION = auto()
    MATCH = auto()


class _Assertion(Enum):
    START = auto()
    END = auto()
    WORD_BOUNDARY = auto()
    NO_WORD_BOUNDARY = auto()


class _Instruction(NamedTuple):
    kind: _Kind
    next: int
    other: int  # The second way on from a SPLIT; of other kinds, the same as next.
    set: int = 0
    assertion: _Assertion | None = None


_Program = list[_Instruction]
# What the parser makes of an expression: it appends the expression's instructions, which go on at
# the given one, and returns where they begin. A repeated expression is emitted several times.
_Emitter = Callable[[_Program, int], int]

_ALL: Final = (1 << 128) - 1
_NEWLINE: Final = 1 << ord("\n")


def _characters(text: str) -> int:
    return sum(1 << ord(character) for character in set(text))


def _range(first: int, last: int) -> int:
    """Return the characters from the first to the last; those beyond ASCII are in no name."""
    return (1 << min(last, 127) + 1) - (1 << min(first, 128))


_DIGITS: Final = _characters("0123456789")
_UPPER: Final = _range(ord("A"), ord("Z"))
_LOWER: Final = _range(ord("a"), ord("z"))
_WORD: Final = _DIGITS | _UPPER | _LOWER | _characters("_")
_PERL_CLASSES: Final = {
    "d": _DIGITS,
    "s": _characters("\t\n\f\r "),
    "w": _WORD,
    "D": _ALL & ~_DIGITS,
    "S": _ALL & ~_characters("\t\n\f\r "),
    "W": _ALL & ~_WORD,
}
_POSIX_CLASSES: Final = {
    "alnum": _DIGITS | _UPPER | _LOWER,
    "alpha": _UPPER | _LOWER,
    "ascii": _ALL,
    "blank": _characters("\t "),
    "cntrl": _range(0, 31) | 1 << 127,
    "digit": _DIGITS,
    "graph": _range(33, 126),
    "lower": _LOWER,
    "print": _range(32, 126),
    "punct": _range(33, 126) & ~(_DIGITS | _UPPER | _LOWER),
    "space": _characters("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGITS | _characters("abcdefABCDEF"),
}
_ESCAPED: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ANCHORS: Final = {
    "A": _Assertion.START,
    "z": _Assertion.END,
    "b": _Assertion.WORD_BOUNDARY,
    "B": _Assertion.NO_WORD_BOUNDARY,
}
_GENERAL_CATEGORY: Final = re.compile(
    r"C[cfos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?"
)
_REPEAT: Final = re.compile(r"\{([0-9]{1,9})(,([0-9]{0,9}))?\}")
_GROUP: Final = re.compile(r"\(\?(?:P?<[A-Za-z0-9_]+>|([imsU]*)(-[imsU]+)?([:)]))")
_CODE_POINT: Final = re.compile(
    r"\\(?:x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|(0[0-7]{0,2}|[1-7][0-7]{1,2}))"
)
_UNICODE_CLASS: Final = re.compile(r"\\([pP])(?:\{(\^?)([A-Za-z_]+)\}|([A-Z]))")
_POSIX_CLASS: Final = re.compile(r"\[:(\^?)([a-z]+):\]")


class Pattern:
    """A compiled pattern, which matches anywhere in a name unless it has anchors."""

    __slots__ = ("_program", "_start", "text")

    def __init__(self, text: str) -> None:
        """Compile the text.

        Raises:
            PatternError: it is no pattern.
        """
        self.text = text
        self._program: _Program = [_Instruction(_Kind.MATCH, 0, 0)]
        self._start = _Parser(text).parse()(self._program, 0)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    @property
    def instruction_count(self) -> int:
        """What it takes to hold, and at worst to try at each character of a name."""
        return len(self._program)

    def matches(self, name: str) -> bool:
        """Say whether the pattern occurs in the name, in time proportional to their sizes."""
        program = self._program
        waiting: set[int] = set()
        for position in range(len(name) + 1):
            # The match may begin at any position, so the start is always among the states.
            waiting.add(self._start)
            reached = self._follow(waiting, name, position)
            if reached is None:
                return True
            if position < len(name):
                bit = 1 << ord(name[position])
                waiting = {program[state].next for state in reached if program[state].set & bit}
        return False

    def _follow(self, seen: set[int], name: str, position: int) -> list[int] | None:
        """Return the states that wait for a character, or None if the match is complete."""
        states = list(seen)
        reached = []
        while states:
            state = states.pop()
            instruction = self._program[state]
            kind = instruction.kind
            if kind is _Kind.MATCH:
                return None
            if kind is _Kind.CHARACTER:
                reached.append(state)
                continue
            if kind is _Kind.ASSERTION and not _holds(instruction.assertion, name, position):
                continue
            for way in (instruction.next, instruction.other):
                if way not in seen:
                    seen.add(way)
                    states.append(way)
        return reached


def _holds(assertion: _Assertion | None, name: str, position: int) -> bool:
    if assertion is _Assertion.START:
        return position == 0
    if assertion is _Assertion.END:
        return position == len(name)
    is_after_word = position > 0 and bool(_WORD >> ord(name[position - 1]) & 1)
    is_before_word = position < len(name) and bool(_WORD >> ord(name[position]) & 1)
    is_boundary = is_after_word != is_before_word
    return is_boundary == (assertion is _Assertion.WORD_BOUNDARY)


class _Parser:
    """A recursive descent over RE2's grammar; its methods return emitters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._nesting = 0
        self._folds_case = False
        self._dot_matches_newline = False

    def parse(self) -> _Emitter:
        expression = self._parse_alternatives()
        if self._position < len(self._text):
            raise PatternError("unexpected )")
        return expression

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _accept(self, token: str) -> bool:
        if not self._text.startswith(token, self._position):
            return False
        self._position += len(token)
        return True

    def _match(self, token: re.Pattern[str]) -> re.Match[str] | None:
        found = token.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
        return found

    def _parse_alternatives(self) -> _Emitter:
        alternatives = [self._parse_sequence()]
        while self._accept("|"):
            alternatives.append(self._parse_sequence())
        return alternatives[0] if len(alternatives) == 1 else _either(alternatives)

    def _parse_sequence(self) -> _Emitter:
        parts: list[_Emitter] = []
        while self._peek() not in {"", "|", ")"}:
            if self._accept("\\Q"):
                parts += self._parse_quoted()
                continue
            atom = self._parse_atom()
            if atom is not None:
                parts.append(self._parse_repetition(atom))
        return parts[0] if len(parts) == 1 else _sequence(parts)

    def _parse_quoted(self) -> list[_Emitter]:
        end = self._text.find("\\E", self._position)
        quoted = self._text[self._position : end if end >= 0 else None]
        self._position += len(quoted)
        self._accept("\\E")
        parts = [_one_of(self._fold(_range(ord(one), ord(one)))) for one in quoted]
        if parts:
            parts[-1] = self._parse_repetition(parts[-1])
        return parts

    def _parse_repetition(self, atom: _Emitter) -> _Emitter:
        is_repeated = False
        while True:
            bounds = self._parse_repeat_bounds()
            if bounds is None:
                return atom
            if is_repeated:
                raise PatternError("invalid nested repetition operator")
            is_repeated = True
            self._accept("?")  # Lazily or not, it matches the same names.
            atom = _repeat(atom, *bounds)

    def _parse_repeat_bounds(self) -> tuple[int, int | None] | None:
        """Return the least and the greatest count; None if no repetition stands here."""
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(operator):
                return bounds
        counted = self._match(_REPEAT)
        if counted is None:
            return None
        least = int(counted[1])
        greatest = least if counted[2] is None else int(counted[3]) if counted[3] else None
        if max(least, greatest or 0) > MAX_REPEAT or (greatest is not None and greatest < least):
            raise PatternError("invalid repeat count")
        return least, greatest

    def _parse_atom(self) -> _Emitter | None:
        """Return the next atom, or None if it only set flags."""
        one = self._peek()
        if one in {"*", "+", "?"} or _REPEAT.match(self._text, self._position):
            raise PatternError("missing argument to repetition operator")
        if one == "(":
            return self._parse_group()
        if one == "[":
            return _one_of(self._parse_class())
        if one == "\\":
            return self._parse_escape()
        self._position += 1
        if one == ".":
            return _one_of(_ALL if self._dot_matches_newline else _ALL & ~_NEWLINE)
        if one == "^":
            return _assert(_Assertion.START)  # A name is one line, so (?m) changes nothing.
        if one == "$":
            return _assert(_Assertion.END)
        return _one_of(self._fold(_range(ord(one), ord(one))))

    def _parse_group(self) -> _Emitter | None:
        flags = self._folds_case, self._dot_matches_newline
        if not self._text.startswith("(?", self._position):
            self._position += 1
        else:
            group = self._match(_GROUP)
            if group is None:
                raise PatternError("invalid or unsupported Perl syntax")
            if group[3] is not None:
                self._set_flags(group[1], group[2] or "")
            if group[3] == ")":
                return None
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise PatternError("expression nests too deeply")
        expression = self._parse_alternatives()
        if not self._accept(")"):
            raise PatternError("missing closing )")
        self._nesting -= 1
        self._folds_case, self._dot_matches_newline = flags
        return expression

    def _set_flags(self, on: str, off: str) -> None:
        self._folds_case = (self._folds_case or "i" in on) and "i" not in off
        self._dot_matches_newline = (self._dot_matches_newline or "s" in on) and "s" not in off

    def _parse_escape(self) -> _Emitter:
        following = self._text[self._position + 1 : self._position + 2]
        if following in _ANCHORS:
            self._position += 2
            return _assert(_ANCHORS[following])
        return _one_of(self._fold(self._parse_escaped_characters()))

    def _parse_escaped_characters(self) -> int:
        found = self._match(_CODE_POINT)
        if found is not None:
            digits = found[1] or found[2]
            code_point = int(digits, 16) if digits else int(found[3], 8)
            if code_point > 0x10FFFF:
                raise PatternError("invalid escape sequence")
            return _range(code_point, code_point)
        unicode_class = self._match(_UNICODE_CLASS)
        if unicode_class is not None:
            return _read_unicode_class(unicode_class)
        following = self._text[self._position + 1 : self._position + 2]
        self._position += 2
        if following in _PERL_CLASSES:
            return _PERL_CLASSES[following]
        if following in _ESCAPED:
            return 1 << _ESCAPED[following]
        if following and following.isascii() and not following.isalnum():
            return 1 << ord(following)
        raise PatternError("invalid escape sequence" if following else "trailing backslash")

    def _parse_class(self) -> int:
        self._position += 1
        is_negated = self._accept("^")
        members = 0
        is_first = True
        while is_first or not self._accept("]"):
            is_first = False
            members |= self._parse_class_member()
        members = self._fold(members)
        return _ALL & ~members if is_negated else members

    def _parse_class_member(self) -> int:
        posix = self._match(_POSIX_CLASS)
        if posix is not None:
            if posix[2] not in _POSIX_CLASSES:
                raise PatternError("invalid character class range")
            named = _POSIX_CLASSES[posix[2]]
            return _ALL & ~named if posix[1] else named
        if self._text[self._position : self._position + 2] in _CLASS_ESCAPES:
            return self._parse_escaped_characters()
        first = self._parse_class_character()
        upcoming = self._text[self._position : self._position + 2]
        if len(upcoming) < 2 or upcoming[0] != "-" or upcoming[1] == "]":
            return _range(first, first)
        self._position += 1
        last = self._parse_class_character()
        if last < first:
            raise PatternError("invalid character class range")
        return _range(first, last)

    def _parse_class_character(self) -> int:
        one = self._peek()
        if not one:
            raise PatternError("missing closing ]")
        if one != "\\":
            self._position += 1
            return ord(one)
        if self._text[self._position : self._position + 2] in _CLASS_ESCAPES:
            raise PatternError("invalid character class range")
        characters = self._parse_escaped_characters()
        return characters.bit_length() - 1 if characters else 128

    def _fold(self, characters: int) -> int:
        if not self._folds_case:
            return characters
        return characters | (characters & _UPPER) << 32 | (characters & _LOWER) >> 32


_CLASS_ESCAPES: Final = frozenset({f"\\{name}" for name in [*_PERL_CLASSES, "p", "P"]})


def _read_unicode_class(found: re.Match[str]) -> int:
    name = found[3] or found[4]
    if name == "Any":
        members = _ALL
    elif name == "Latin":
        members = _UPPER | _LOWER
    elif _GENERAL_CATEGORY.fullmatch(name):
        members = sum(
            1 << code_point
            for code_point in range(128)
            if unicodedata.category(chr(code_point)).startswith(name)
        )
    else:
        raise PatternError("unknown character class")
    is_negated = (found[1] == "P") != bool(found[2])
    return _ALL & ~members if is_negated else members


def _append(program: _Program, instruction: _Instruction) -> int:
    if len(program) >= MAX_INSTRUCTIONS:
        raise PatternError("expression too large")
    program.append(instruction)
    return len(program) - 1


def _one_of(characters: int) -> _Emitter:
    return lambda program, then: _append(
        program, _Instruction(_Kind.CHARACTER, then, then, set=characters)
    )


def _assert(assertion: _Assertion) -> _Emitter:
    return lambda program, then: _append(
        program, _Instruction(_Kind.ASSERTION, then, then, assertion=assertion)
    )


def _sequence(parts: list[_Emitter]) -> _Emitter:
    def emit(program: _Program, then: int) -> int:
        for part in reversed(parts):
            then = part(program, then)
        return then

    return emit


def _either(alternatives: list[_Emitter]) -> _Emitter:
    def emit(program: _Program, then: int) -> int:
        *others, start = [alternative(program, then) for alternative in alternatives]
        for other in others:
            start = _append(program, _Instruction(_Kind.SPLIT, other, start))
        return start

    return emit


def _repeat(atom: _Emitter, least: int, greatest: int | None) -> _Emitter:
    def emit(program: _Program, then: int) -> int:
        start = then
        if greatest is None:
            start = _append(program, _Instruction(_Kind.SPLIT, then, then))
            program[start] = _Instruction(_Kind.SPLIT, atom(program, start), then)
        else:
            for _ in range(greatest - least):
                start = _append(program, _Instruction(_Kind.SPLIT, atom(program, start), then))
        for _ in range(least):
            size = len(program)
            start = atom(program, start)
            if len(program) == size:
                break  # Nothing, however often; nested counts of it would never end.
        return start

    return emit
