"""Schemas as DDL, such as `user string, tags array<string>`, parsed without Spark.

pyspark parses them in the JVM, which takes a minute to start before it finds a misspelt type.
"""

import re

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>,:()])")
_SIMPLE: dict[str, type[DataType]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
    "string": StringType,
    "binary": BinaryType,
}
_DECIMAL = ("decimal", "dec", "numeric")
_SIZED: dict[str, type[CharType] | type[VarcharType]] = {"char": CharType, "varchar": VarcharType}
_MAX_DEPTH = 64
_END = ""


def parse_ddl(text: str) -> StructType:
    """Parse the fields of a struct.

    Raises:
        ValueError: the text is no schema; it says where.
    """
    parser = _Parser(text)
    fields = parser.fields(_END, 0)
    return StructType(fields)


class _Parser:
    """The tokens of a schema, taken from front to back."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"what is {text[position : position + 20].strip()!r}?")
            self._tokens.append(match[1])
            position = match.end()
        self._tokens.append(_END)
        self._next = 0

    def fields(self, stop: str, depth: int) -> list[StructField]:
        """Take fields up to a token, and that."""
        found: list[StructField] = []
        while not self._accept(stop):
            if found:
                self._expect(",")
            found.append(self._field(depth))
        if len({field.name.lower() for field in found}) < len(found):
            raise ValueError("a field is named twice")
        return found

    def _field(self, depth: int) -> StructField:
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            raise ValueError(f"a name of a field, not {name or 'the end'!r}")
        self._accept(":")
        kind = self._type(depth)
        is_nullable = True
        if self._accept("not"):
            self._expect("null")
            is_nullable = False
        if self._accept("comment"):
            self._take()
        return StructField(name, kind, is_nullable)

    def _type(self, depth: int) -> DataType:
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
        name = self._take().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _DECIMAL:
            return self._decimal()
        if name in _SIZED:
            self._expect("(")
            sized = _SIZED[name](self._number())
            self._expect(")")
            return sized
        return self._nested(name, depth + 1)

    def _nested(self, name: str, depth: int) -> DataType:
        if name not in ("array", "map", "struct"):
            raise ValueError(f"no type {name or 'at the end'!r}")
        self._expect("<")
        if name == "struct":
            return StructType(self.fields(">", depth))
        first = self._type(depth)
        if name == "array":
            self._expect(">")
            return ArrayType(first)
        self._expect(",")
        value = self._type(depth)
        self._expect(">")
        return MapType(first, value)

    def _decimal(self) -> DecimalType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            if self._accept(","):
                scale = self._number()
            self._expect(")")
        if not 0 <= scale <= precision <= 38 or precision == 0:
            raise ValueError(f"no decimal({precision},{scale})")
        return DecimalType(precision, scale)

    def _number(self) -> int:
        text = self._take()
        if not text.isdecimal():
            raise ValueError(f"a number, not {text or 'the end'!r}")
        return int(text)

    def _take(self) -> str:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _accept(self, wanted: str) -> bool:
        if self._tokens[self._next].lower() != wanted:
            return False
        self._take()
        return True

    def _expect(self, wanted: str) -> None:
        token = self._take()
        if token.lower() != wanted:
            raise ValueError(f"{wanted!r} is missing before {token or 'the end'!r}")
