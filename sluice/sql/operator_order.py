"""Parses operators in Spark's order, which differs from sqlglot's.

For Spark, `a | b & c` is `a | (b & c)`, `a = b < c` is `(a = b) < c`, and `a = b IN (c)` is
`(a = b) IN (c)`. The methods follow the rules `booleanExpression` and `valueExpression` of Spark's
grammar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parser import IsPredicatePrecedence
from sqlglot.tokenizer_core import TokenType
from typing_extensions import override

_OPERATIONS: Sequence[Mapping[TokenType, type[exp.Binary]]] = (
    {
        TokenType.EQ: exp.EQ, TokenType.NEQ: exp.NEQ, TokenType.NULLSAFE_EQ: exp.NullSafeEQ,
        TokenType.LT: exp.LT, TokenType.LTE: exp.LTE, TokenType.GT: exp.GT, TokenType.GTE: exp.GTE,
    },
    {TokenType.PIPE: exp.BitwiseOr},
    {TokenType.CARET: exp.BitwiseXor},
    {TokenType.AMP: exp.BitwiseAnd},
    {TokenType.LT: exp.BitwiseLeftShift, TokenType.GT: exp.BitwiseRightShift},
    {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub, TokenType.DPIPE: exp.DPipe},
)  # fmt: skip
"""Operators between two values, by level. The first level binds least tightly; the last level, with
`*`, binds most tightly."""
_SHIFTS = 4
_LEVELS: dict[TokenType, int] = {}
for _level, _signs in enumerate(_OPERATIONS):
    if _level != _SHIFTS:
        _LEVELS |= dict.fromkeys(_signs, _level)


class OperatorOrder(Spark.Parser):  # type: ignore[valid-type, misc]
    """A parser with Spark's order of operators."""

    # After IS DISTINCT FROM, sqlglot must parse a value.
    IS_PREDICATE_PRECEDENCE = IsPredicatePrecedence.HIGH
    # NOT may only begin an operand of AND and OR.
    UNARY_PARSERS = {  # noqa: RUF012
        kind: of for kind, of in Spark.Parser.UNARY_PARSERS.items() if kind is not TokenType.NOT
    }

    @override
    def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
        """Parse an operand of AND or OR: `NOT operand`, or a value that a predicate may follow."""
        if self._match(TokenType.NOT):
            negation: exp.Expr = self.expression(exp.Not(this=self._parse_equality()))
            return negation
        return self._parse_range()

    @override
    def _parse_range(self, this: exp.Expr | None = None, parse_is: bool = False) -> exp.Expr | None:
        value = self._parse_bitwise() if this is None else this
        negated = self._match(TokenType.NOT)
        if not self._match_set(self.RANGE_PARSERS):
            if negated:
                self._retreat(self._index - 1)
            return value
        predicate: exp.Expr | None = self.RANGE_PARSERS[self._prev.token_type](self, value)
        if negated:
            predicate = self._negate_range(predicate)
        return predicate

    @override
    def _parse_column_ops(self, this: exp.Expr | None) -> exp.Expr | None:
        # Brackets, dots and :: can follow a value, but they cannot follow `a IS NULL`.
        if isinstance(this, exp.Is | exp.Not):
            return this
        value: exp.Expr | None = super()._parse_column_ops(this)
        return value

    @override
    def _parse_bitwise(self) -> exp.Expr | None:
        """Parse a value, which contains AND, OR, NOT and predicates only in parentheses."""
        return self._parse_operation(0)

    def _parse_operation(self, loosest: int) -> exp.Expr | None:
        """Parse a value whose operators outside parentheses bind at least as tightly as a level."""
        value: exp.Expr | None = self._parse_factor()
        while (level := self._level()) >= loosest:
            operation = _OPERATIONS[level][self._curr.token_type]
            tokens = 2 if level == _SHIFTS else 1
            self._advance(tokens)
            operand = self._parse_operation(level + 1)
            value = self.expression(operation(this=value, expression=operand))
        return value

    def _level(self) -> int:
        """Return how tightly the next token binds; -1 if it is not an operator."""
        sign, following = self._curr, self._next
        if sign.token_type in _OPERATIONS[_SHIFTS] and following.token_type is sign.token_type:
            # A sign such as `<<` consists of two tokens.
            if following.start == sign.end + 1:
                return _SHIFTS
            return -1
        return _LEVELS.get(sign.token_type, -1)

    @override
    def _parse_unary(self) -> exp.Expr | None:
        value: exp.Expr | None = super()._parse_unary()
        while self._match(TokenType.COLLATE):
            value = self.expression(exp.Collate(this=value, expression=self._parse_id_var()))
        return value
