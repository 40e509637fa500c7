"""Finds words that are fields to Spark and keywords to sqlglot: `all` in `concat(all, x)`.

Spark reserves no words: a word is a field if it stands where an operand begins, and if the next
token can only follow an operand. sqlglot would read some of these words in another way, or drop
them without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import Token, TokenType

CONSTANTS = frozenset(
    {TokenType.NULL, TokenType.TRUE, TokenType.FALSE, *Spark.Parser.NO_PAREN_FUNCTIONS}
)
"""Words that are expressions by themselves."""
_NO_WORDS = (
    Spark.Parser.TEXT_MATCH_EXCLUDED_TOKENS - {TokenType.IDENTIFIER} | {TokenType.NUMBER}
    | CONSTANTS
)  # fmt: skip

_NAME, _CONSTANT = "`name`", "'constant'"
"""The texts that stand for names and constants. No SQL word is equal to them."""
_SIGNS = frozenset({"+", "-"})
"""Signs that stand between two operands, or before one operand."""
_INFIX_SIGNS = frozenset({
    "*", "/", "%", "||", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "&", "|", "^", "->",
    "=>",
})  # fmt: skip
_INFIX_WORDS = frozenset(
    {
        "AND", "OR", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "DIV", "WHEN", "THEN", "ELSE",
        "FROM", "ESCAPE",
    }
)  # fmt: skip
"""Words that stand between two operands; also the words of CASE, and FROM, which stand before one
operand."""
_INFIX = _INFIX_SIGNS | _INFIX_WORDS
_NEGATIONS = frozenset({"NOT", "!"})
_QUANTIFIERS = frozenset({"ALL", "DISTINCT"})
_PREFIXES = frozenset({"(", "[", ",", "~", "CASE", "WHERE", "ORDER BY"})
_BEFORE_OPERAND = _SIGNS | _INFIX | _NEGATIONS | _QUANTIFIERS | _PREFIXES
_SUFFIXES = frozenset({")", "]", ",", ".", "::", "[", "IN", "IS", "END", "AS", "COLLATE", ";"})
_AFTER_OPERAND = _SIGNS | _INFIX | _NEGATIONS | _SUFFIXES
_NESTED_TYPES = frozenset({"ARRAY", "MAP", "STRUCT", "LIST"})
UNITS = frozenset(
    {
        "YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND",
    }
)  # fmt: skip
"""The units of INTERVAL, without the S of their plurals."""


def places_of_names(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the indices of tokens that must be fields, or first parts of paths such as `a.b`."""
    # Treat the tokens as if they were within parentheses.
    words = ["(", "(", *map(_word, tokens), ")", ")", ")"]
    depth_of_type = 0
    for place, word in enumerate(words[2:-3], 2):
        # The words within a type such as ARRAY<INT> are not names.
        if depth_of_type or (word == "<" and words[place - 1] in _NESTED_TYPES):
            depth_of_type += (word == "<") - (word == ">")
        elif (word == _NAME or word.isidentifier()) and _is_operand(words, place):
            # After a name, the next word can be an operator.
            words[place] = _NAME
            yield place - 2


def begins_operand(before: Token) -> bool:
    """Return whether an operand begins after a token, with names marked by `SparkSQL.tokenize`."""
    return before.token_type is not TokenType.VAR and _word(before) in _BEFORE_OPERAND


def is_infix_word(token: Token) -> bool:
    """Return whether a token is a word between operands, with names marked by `tokenize`."""
    return token.token_type is not TokenType.VAR and _word(token) in _INFIX_WORDS


def _word(token: Token) -> str:
    """Return the word or sign in capital letters."""
    if token.token_type is TokenType.IDENTIFIER:
        return _NAME
    if token.token_type in _NO_WORDS:
        return _CONSTANT
    return token.text.upper()


def _is_operand(words: Sequence[str], place: int) -> bool:
    earlier, before, word, following, second, third = words[place - 2 : place + 4]
    if before not in _BEFORE_OPERAND or following not in _AFTER_OPERAND:
        return False
    is_followed_by_operand = following in _SIGNS | _NEGATIONS
    match word:
        case "NOT":
            return False
        case "CASE":
            return following != "WHEN"
        case "BOTH" | "LEADING" | "TRAILING":
            # trim(BOTH FROM x)
            return following != "FROM"
        case "INTERVAL":
            # INTERVAL -'1' DAY
            is_constant = second == _CONSTANT and third.removesuffix("S") in UNITS
            return not (following in _SIGNS and is_constant)
        case "FROM" if before == "DISTINCT" and earlier in ("IS", "NOT"):
            return False
        case "DISTINCT" if following == "FROM":
            return False
        case "ALL" | "DISTINCT" if is_followed_by_operand:
            # count(DISTINCT -x)
            return before != "(" or earlier in _BEFORE_OPERAND
        case _ if word in _INFIX_WORDS and before in _NEGATIONS:
            # x NOT LIKE y
            return earlier in _BEFORE_OPERAND
    return True
