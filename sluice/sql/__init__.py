"""Parses and checks Spark SQL expressions without Spark; computes most of them on Arrow columns.

An author's expression passes through these files:

1. `parsed_expression.parse`: the file `dialect` parses the text into a tree. The file `calls` finds
   the calls of functions in the text.
2. `typed_expression.type_expression`: a rule of the table in `rules` gives each part its type, and
   tells whether it can fail.
3. `expression_checks.require_valid`: mistakes become errors. The table in `function_arguments` has
   the types that each function accepts. `aggregate_expressions.split_aggregate` splits aggregates.
4. `fallible.may_fail`: the planner guards expressions that can fail for a record, and knows the
   causes of failures.
5. `arrow_evaluation.evaluate`: functions of the files `arrow_*` compute the values. Spark computes
all other expressions.
"""
