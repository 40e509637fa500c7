"""Words by letter: the latest, counted, put together and collected, and joined with descriptions of the letters."""

import msgspec

from sluice import Pipeline, within


class DeadLetter(msgspec.Struct):
    """What is known of a letter's words."""

    key: str = ""
    valueList: set[str] = msgspec.field(default_factory=set)
    runningCount: int = 0


def joined(so_far: str, word: str) -> str:
    """One more word after a hyphen."""
    return f"{so_far}-{word}"


def with_word(key: str, word: str, letter: DeadLetter) -> DeadLetter:
    """What is known of the letter with one more word."""
    return DeadLetter(key, letter.valueList | {word}, letter.runningCount + 1)


pipeline = Pipeline("words", workers=2)

# The latest word of each key, and of these the ones that are words.
latest = pipeline.table("words", value=str, store="words_latest")
latest.filter("value RLIKE '^[A-Za-z]{3,}$'").to_stream().to_table(store="words_clean").to("words_clean", value=str)

alphabet = pipeline.stream("alphabet", value=str)
by_letter = alphabet.group_by_key()
by_letter.count(store="letters_count")
by_letter.reduce(joined, store="letters_joined")
by_letter.aggregate(DeadLetter, with_word, store="letters", returns=DeadLetter)

# The same words by their length.
alphabet.select_key("length(value)").group_by_key().count(store="lengths_count")

described = pipeline.stream("alphabet_descriptions", value=str, nulls="keep")
descriptions = described.to_table(store="descriptions")
newest = alphabet.to_table(store="newest_word")

alphabet.join(descriptions).to("words_with_description_inner")
alphabet.left_join(descriptions).to("words_with_description_left")

newest.join(descriptions).to("letters_with_description_inner")
newest.left_join(descriptions).to("letters_with_description_left")
newest.outer_join(descriptions).to("letters_with_description_outer")

near = within("10 seconds")
alphabet.join(described, near).to("words_near_description_inner")
alphabet.left_join(described, near).to("words_near_description_left")
alphabet.outer_join(described, near).to("words_near_description_outer")
