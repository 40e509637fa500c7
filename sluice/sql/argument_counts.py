"""How many arguments each function of Spark SQL takes.

sqlglot accepts many calls with too few or too many arguments, and drops arguments that it does not
know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from sluice.values.phrases import counted

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
_OPERATORS = frozenset({"like", "ilike", "rlike", "regexp", "between"})
"""Names that are functions and also operators; as an operator, a name may follow NOT."""
_BETWEEN_ARGUMENTS = {
    "cast": "AS", "try_cast": "AS", "extract": "FROM", "trim": "FROM", "substring": "FROM",
    "substr": "FROM", "position": "IN", "overlay": "PLACING",
}  # fmt: skip
"""Functions with a special syntax → the word that may stand between two arguments instead of a
comma."""


@dataclass(frozen=True)
class Counts:
    """The numbers of arguments that a function takes."""

    numbers: tuple[int, ...]
    """The numbers, in order."""
    or_more: bool
    """Whether the function also takes more arguments than the largest of the numbers."""

    @classmethod
    def of(cls, text: str) -> Counts:
        """Read `2`, `2-4`, `1+`, or several numbers."""
        first, _, last = text.partition("-")
        if last:
            return cls(tuple(range(int(first), int(last) + 1)), or_more=False)
        numbers = tuple(map(int, text.rstrip("+").split()))
        return cls(numbers, or_more=text.endswith("+"))

    def include(self, number: int) -> bool:
        return number in self.numbers or (self.or_more and number > self.numbers[-1])

    def __str__(self) -> str:
        least, most = self.numbers[0], self.numbers[-1]
        if most == 0:
            return "none"
        if self.or_more:
            return f"at least {counted(least, 'argument')}"
        if least == most:
            return counted(most, "argument")
        if len(self.numbers) > 2 and most - least == len(self.numbers) - 1:
            return f"{least} to {most} arguments"
        others = ", ".join(map(str, self.numbers[:-1]))
        return f"{others} or {most} arguments"


def wrong_count(tokens: Sequence[Token], place: int) -> str:
    """Say how many arguments the function at this place gets, and how many it takes.

    Return an empty text if the number is right, or if the right number is unknown.
    """
    name = tokens[place].text.lower()
    if place and _is_operator(name, tokens[place - 1]):
        return ""
    given = _given_count(name, tokens, place)
    if given is None:
        return ""
    wanted = ""
    if name in COUNTS and not COUNTS[name].include(given):
        wanted = str(COUNTS[name])
    if name in _IN_PAIRS and given % 2:
        wanted = "an even number of arguments"
    if not wanted:
        return ""
    shown = counted(given, "argument") if given else "no arguments"
    return f"calls {tokens[place].text} with {shown}, but it takes {wanted}"


def _is_operator(name: str, before: Token) -> bool:
    """Return whether a word is an operator: `a NOT LIKE (b)`, `a LIKE ANY ('b%', 'c%')`."""
    if before.token_type is TokenType.NOT:
        return name in _OPERATORS
    return before.token_type in (TokenType.LIKE, TokenType.ILIKE)


def _given_count(name: str, tokens: Sequence[Token], place: int) -> int | None:
    """Return the number of arguments of a call.

    Return None if it has a special syntax, or no closing parenthesis.
    """
    commas = depth = 0
    is_cast = False
    for token in tokens[place + 1 :]:
        kind = token.token_type
        if kind in _OPENING:
            depth += 1
        elif kind in _CLOSING:
            depth -= 1
        if not depth:
            is_empty = tokens[place + 2] is token
            return 0 if is_empty else commas + 1
        if depth > 1:
            continue
        is_word = kind not in (TokenType.STRING, TokenType.IDENTIFIER)
        if is_word and token.text.upper() == _BETWEEN_ARGUMENTS.get(name):
            return None
        # A type such as STRUCT<a: INT, b: INT> has commas, too.
        is_cast = is_cast or kind is TokenType.DCOLON
        if is_cast and kind is TokenType.LT:
            return None
        commas += kind is TokenType.COMMA
    return None


_FUNCTIONS = {
    "0": """
        cume_dist curdate current_catalog current_database current_date current_path
        current_schema current_timestamp current_timezone current_user e input_file_block_length
        input_file_block_start input_file_name localtimestamp monotonically_increasing_id now pi
        row_number session_user spark_partition_id user version
    """,
    "0-1": "current_time ntile rand randn random uuid",
    "0-2": "make_ym_interval mode unix_timestamp",
    "0-4": "lag lead make_dt_interval",
    "0-7": "make_interval",
    "1": """
        abs acos acosh any array_agg array_compact array_distinct array_max array_min array_size
        ascii asin asinh atan atanh avg base64 bigint bin binary bit_and bit_count bit_length
        bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
        bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean cardinality
        cbrt char char_length character_length chr collation collect_list collect_set cos cosh
        cot count_if crc32 csc date date_from_unix_date day dayname dayofmonth dayofweek
        dayofyear degrees double every exp explode explode_outer expm1 factorial flatten float
        grouping hex hll_sketch_estimate initcap inline inline_outer int is_valid_utf8
        is_valid_variant is_variant_null isnan isnotnull isnull json_array_length
        json_object_keys kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
        kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float
        kurtosis last_day lcase len length ln log10 log1p log2 lower luhn_check make_valid_utf8
        map_entries map_from_entries map_keys map_values max md5 mean measure median min month
        monthname negative not nullifzero octet_length parse_json percentile_cont
        percentile_disc posexplode posexplode_outer positive quarter quote radians raise_error
        reverse rint schema_of_variant schema_of_variant_agg sec sha sha1 sign signum sin sinh
        size skewness smallint some soundex space sqrt st_geogfromwkb st_srid std stddev
        stddev_pop stddev_samp string sum tan tanh theta_intersection_agg theta_sketch_estimate
        time time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
        time_to_seconds timestamp timestamp_micros timestamp_millis timestamp_seconds tinyint
        to_variant_object try_avg try_parse_json try_sum try_url_decode try_validate_utf8
        tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_theta_double
        tuple_sketch_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis
        unix_seconds upper url_decode url_encode validate_utf8 var_pop var_samp variance
        vector_avg vector_sum weekday weekofyear year zeroifnull
    """,
    "1-2": """
        any_value approx_count_distinct approx_top_k_accumulate approx_top_k_combine
        approx_top_k_estimate array_sort assert_true bround btrim ceil ceiling first first_value
        floor from_unixtime hll_sketch_agg hll_union_agg kll_merge_agg_bigint
        kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
        kll_sketch_agg_float last last_value listagg log ltrim randstr round rtrim
        schema_of_avro schema_of_csv schema_of_json schema_of_xml shuffle sort_array st_asbinary
        st_geomfromwkb string_agg theta_sketch_agg theta_union_agg to_avro to_binary to_csv
        to_date to_json to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
        to_xml trim try_to_binary try_to_date try_to_time try_to_timestamp
        tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_summary_double
        tuple_sketch_summary_integer vector_norm vector_normalize
    """,
    "1-3": """
        approx_top_k sentences str_to_map tuple_union_agg_double tuple_union_agg_integer
    """,
    "1-5": "mask",
    "1 2 3 6 7": "make_timestamp try_make_timestamp",
    "1-7": "try_make_interval",
    "1+": "coalesce concat_ws format_string hash hour minute printf second xxhash64",
    "2": """
        add_months and array_append array_contains array_except array_intersect array_position
        array_prepend array_remove array_repeat array_union arrays_overlap atan2 bit_get collate
        contains corr covar_pop covar_samp date_format date_part date_sub date_trunc datepart
        div element_at encode endswith equal_null exists extract filter find_in_set forall
        format_number from_utc_timestamp get get_json_object getbit histogram_numeric hypot
        ifnull instr kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
        kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
        kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double
        kll_sketch_merge_float left map_contains_key map_filter map_from_arrays mod nanvl
        next_day nullif nvl or pmod pow power regexp regexp_count regexp_like regexp_substr
        regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
        regr_syy repeat right rlike sha2 shiftleft shiftright shiftrightunsigned st_setsrid
        startswith theta_difference theta_intersection time_trunc to_char to_number
        to_utc_timestamp to_varchar transform transform_keys transform_values trunc try_add
        try_divide try_element_at try_mod try_multiply try_subtract try_to_number
        tuple_difference_double tuple_difference_integer tuple_difference_theta_double
        tuple_difference_theta_integer vector_cosine_similarity vector_inner_product
        vector_l2_distance xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long
        xpath_number xpath_short xpath_string
    """,
    "2-3": """
        approx_percentile array_join convert_timezone date_add date_diff dateadd datediff
        from_avro from_csv from_json from_xml hll_union ilike levenshtein like locate lpad
        max_by min_by months_between nth_value parse_url percentile percentile_approx position
        regexp_extract regexp_extract_all regexp_instr replace rpad sequence split substr
        substring theta_union time_bucket try_variant_get tuple_intersection_double
        tuple_intersection_integer tuple_intersection_theta_double
        tuple_intersection_theta_integer uniform variant_get
    """,
    "2-4": """
        from_protobuf to_protobuf tuple_sketch_agg_double tuple_sketch_agg_integer
        tuple_union_double tuple_union_integer tuple_union_theta_double
        tuple_union_theta_integer
    """,
    "2-5": "aes_decrypt try_aes_decrypt",
    "2-6": "aes_encrypt",
    "2 6": "make_timestamp_ntz try_make_timestamp_ntz",
    "2 3 6 7": "make_timestamp_ltz try_make_timestamp_ltz",
    "2+": "decode elt greatest java_method json_tuple least reflect stack",
    "3": """
        array_insert between conv if make_date make_time map_zip_with nvl2 slice split_part
        substring_index time_diff timestampadd timestampdiff translate zip_with
    """,
    "3-4": "aggregate overlay reduce regexp_replace",
    "4": "count_min_sketch width_bucket",
}
"""Numbers of arguments → the functions that take this number, according to Spark's function
registry.

These are not listed: functions that take any number of arguments; `count`, because
`expression_checks` has its own advice for it; and `decimal`, because it is also a type with two
numbers."""

_IN_PAIRS = frozenset({"map", "named_struct"})


def _counts() -> Iterator[tuple[str, Counts]]:
    for numbers, names in _FUNCTIONS.items():
        counts = Counts.of(numbers)
        for name in names.split():
            yield name, counts


COUNTS = dict(_counts())
