"""Which types of columns Spark 4.2 accepts as arguments, as its analysis says with ANSI mode.

`tests/engine/test_sql_rules.py` asks Spark again.
"""

from __future__ import annotations

COLUMNS = {
    "text": "STRING", "small": "INT", "whole": "BIGINT", "share": "DOUBLE", "amount": "DECIMAL(12,2)",
    "flag": "BOOLEAN", "at": "TIMESTAMP", "day": "DATE", "data": "BINARY", "counts": "ARRAY<INT>",
    "words": "ARRAY<STRING>", "sizes": "MAP<STRING, BIGINT>", "place": "STRUCT<x: STRING>",
}  # fmt: skip

ACCEPTED: dict[str, tuple[str, ...]] = {
    "text small whole share amount": (
        "{} = 1", "{} > 1", "{} BETWEEN 1 AND 2", "{} IN (1, 2)", "CASE {} WHEN 1 THEN 2 END",
        "coalesce({}, 1)", "{} * 2", "{} / 2", "{} % 2", "-{}", "abs({})", "try_multiply({}, 2)",
        "try_divide({}, 2)", "round({})", "round({}, 1)", "floor({})", "ceil({})", "sqrt({})",
        "{} >> 1", "{} << 1", "pmod({}, 2)", "pmod(5, {})", "substring(text, {})",
        "substring(text, 1, {})", "left(text, {})", "right(text, {})", "lpad(text, {}, ' ')",
        "repeat(text, {})", "nullif({}, 1)", "exp({})", "ln({})", "log10({})", "pow({}, 2)",
        "pow(2, {})", "sin({})", "sign({})", "bround({}, 1)", "from_unixtime({})", "bin({})",
        "isnan({})", "nanvl({}, 1.0)", "factorial({})", "char({})", "make_date({}, 1, 1)",
        "width_bucket({}, 0, 1, 2)", "space({})", "array({}, 1)", "ifnull({}, 1)",
        "date_from_unix_date({})", "degrees({})", "cbrt({})", "hypot({}, 1)", "log({}, 2)",
        "mod({}, 2)", "negative({})", "positive({})", "try_mod({}, 2)", "rint({})", "median({})",
        "stddev({})", "stddev_samp({})", "stddev_pop({})", "std({})", "variance({})",
        "var_samp({})", "var_pop({})", "skewness({})", "kurtosis({})", "percentile({}, 0.5)",
        "corr({}, share)", "corr(share, {})", "covar_samp({}, share)", "covar_samp(share, {})",
        "covar_pop({}, share)", "covar_pop(share, {})",
    ),
    "text small whole share amount flag at day data": (
        "{} = 't'", "{} IN ('a')", "coalesce({}, 'a')", "substring({}, 1)", "upper({})",
        "lower({})", "trim({})", "length({})", "left({}, 1)", "right({}, 1)", "lpad({}, 5, ' ')",
        "lpad(text, 5, {})", "repeat({}, 2)", "concat_ws({}, text)", "replace({}, 'a', 'b')",
        "replace(text, {}, 'b')", "replace(text, 'a', {})", "{} RLIKE 'a'", "text RLIKE {}",
        "regexp_like({}, 'a')", "split({}, ',')", "split(text, {})", "instr({}, 'a')",
        "instr(text, {})", "locate('a', {})", "startswith({}, 'a')", "startswith(text, {})",
        "endswith({}, 'a')", "contains({}, 'a')", "contains(text, {})", "hex({})", "unhex({})",
        "to_date({})", "date_format(at, {})", "date_trunc({}, at)", "concat({}, 'a')", "{} || 'a'",
        "{} LIKE 'a'", "text LIKE {}", "initcap({})", "translate({}, 'a', 'b')",
        "regexp_replace({}, 'a', 'b')", "regexp_extract({}, 'a', 0)", "to_timestamp({})",
        "ascii({})", "unbase64({})", "levenshtein({}, 'a')", "conv({}, 10, 2)", "url_encode({})",
        "find_in_set({}, 'a,b')", "ltrim({})", "rtrim({})", "btrim({})", "position('a' IN {})",
        "split_part({}, ',', 1)", "nvl({}, 'a')", "bit_length({})", "octet_length({})",
        "char_length({})", "encode({}, 'UTF-8')", "quote({})", "try_to_number({}, '999')",
        "to_number({}, '999')", "ilike({}, 'a')", "{} ILIKE 'a'",
    ),
    "text at day": (
        "CAST({} AS DATE)", "year({})", "month({})", "day({})", "dayofmonth({})", "dayofyear({})",
        "dayofweek({})", "weekofyear({})", "quarter({})", "weekday({})", "hour({})", "minute({})",
        "second({})", "date_format({}, 'yyyy')", "date_trunc('HOUR', {})", "trunc({}, 'MM')",
        "date_add({}, 1)", "date_sub({}, 1)", "datediff({}, day)", "datediff(day, {})",
        "add_months({}, 1)", "last_day({})", "months_between({}, day)", "next_day({}, 'MO')",
        "unix_timestamp({})", "date_part('YEAR', {})", "extract(HOUR FROM {})",
        "to_unix_timestamp({})", "from_utc_timestamp({}, 'UTC')", "to_utc_timestamp({}, 'UTC')",
    ),
    "text small whole share amount flag at day data counts words sizes place": (
        "{} IS NULL", "CAST({} AS STRING)", "nvl2({}, 1, 2)", "struct({})", "array({}, {})",
        "map('a', {})", "typeof({})", "isnull({})", "isnotnull({})", "count({})", "first({})",
        "last({})", "any_value({})", "collect_list({})", "mode({})", "approx_count_distinct({})",
        "max_by({}, small)", "min_by({}, small)", "count(DISTINCT {})", "count({}, small)",
    ),
    "counts words": (
        "array_compact({})", "array_join({}, ',')", "element_at({}, 1)", "slice({}, 1, 2)",
        "sort_array({})", "array_distinct({})", "array_max({})", "array_min({})",
        "array_union({}, {})", "arrays_overlap({}, {})", "transform({}, x -> x)",
        "filter({}, x -> true)", "exists({}, x -> true)", "aggregate({}, 0, (a, x) -> a)",
        "shuffle({})",
    ),
    "text small whole share amount flag at day data counts words place": (
        "{} = {}", "{} < {}", "{} <=> {}", "greatest({}, {})", "hash({})", "xxhash64({})",
        "map({}, 1)", "min({})", "max({})", "collect_set({})", "max_by(small, {})",
        "min_by(small, {})",
    ),
    "text flag": (
        "{} AND true", "true AND {}", "{} OR false", "NOT {}", "count_if({})", "bool_and({})",
        "bool_or({})", "every({})", "some({})", "any({})",
    ),
    "text": (
        "array_join(words, {})", "from_json({}, 'a INT')", "soundex({})",
        "get_json_object({}, '$.a')", "json_tuple({}, 'a')", "parse_url({}, 'HOST')",
        "greatest({}, 'a')", "mask({})",
    ),
    "text data": (
        "CAST({} AS BINARY)", "md5({})", "sha1({})", "sha2({}, 256)", "base64({})", "crc32({})",
        "decode({}, 'UTF-8')",
    ),
    "sizes": (
        "{}['a']", "map_keys({})", "map_values({})", "element_at({}, 'a')", "map_entries({})",
        "map_concat({}, {})",
    ),
    "small whole": (
        "timestamp_millis({})", "timestamp_micros({})", "bit_and({})", "bit_or({})", "bit_xor({})",
    ),
    "small whole share amount": (
        "greatest({}, 1)", "{} + {}", "array_contains(counts, {})", "timestamp_seconds({})",
        "format_number({}, 2)",
    ),
    "counts words sizes": (
        "{}[0]", "size({})", "explode({})", "cardinality({})",
    ),
    "text small whole share amount at day": (
        "CAST({} AS TIMESTAMP)", "to_char({}, '999')", "approx_percentile({}, 0.5)",
        "percentile_approx({}, 0.5)",
    ),
    "text small whole share amount day": (
        "{} + 1", "{} - 1", "try_add({}, 1)", "try_subtract({}, 1)",
    ),
    "text small whole share amount flag at": (
        "CAST({} AS INT)", "CAST({} AS DOUBLE)", "CAST({} AS DECIMAL(10,2))",
        "TRY_CAST({} AS INT)",
    ),
    "at": (
        "unix_millis({})", "unix_micros({})", "unix_seconds({})",
    ),
    "counts": (
        "array_contains({}, 1)", "array_position({}, 1)", "array_remove({}, 1)",
    ),
    "flag": (
        "IF({},1,2)", "CASE WHEN {} THEN 1 END", "sum(small) FILTER (WHERE {})",
    ),
    "text small whole": (
        "{} & 1", "{} | 1", "{} ^ 1",
    ),
    "text small whole share amount at": (
        "sum({})", "avg({})", "mean({})",
    ),
    "text small whole share amount flag at day data counts words": (
        "reverse({})", "concat_ws(',', {})", "concat({}, {})",
    ),
    "": (
        "round(1.5, {})", "flatten({})",
    ),
    "counts words sizes place": (
        "to_json({})",
    ),
    "day": (
        "unix_date({})",
    ),
    "sizes place": (
        "{}.x",
    ),
    "small whole at day": (
        "sequence({}, {})",
    ),
    "small whole flag": (
        "bit_count({})",
    ),
    "text small": (
        "date_add(day, {})",
    ),
    "text small whole amount": (
        "{} DIV 2",
    ),
    "text small whole share amount flag": (
        "CAST({} AS BOOLEAN)",
    ),
    "text small whole share amount flag at day": (
        "overlay({} PLACING 'a' FROM 1)",
    ),
    "words": (
        "array_contains({}, 'a')",
    ),
}  # fmt: skip
"""Columns → expressions that Spark accepts with each of these columns, and no other, in place of
`{}`."""
