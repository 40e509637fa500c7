"""Words by letter: the latest word, counts, concatenations, collections, and joins with descriptions of the letters."""

import msgspec

from sluice import Pipeline, within


class Letter(msgspec.Struct):
    """The words of a letter."""

    key: str = ""
    valueList: set[str] = msgspec.field(default_factory=set)
    runningCount: int = 0


def joined(words: str, word: str) -> str:
    return f"{words}-{word}"


def with_word(key: str, letter: Letter, word: str) -> Letter:
    return Letter(key, letter.valueList | {word}, letter.runningCount + 1)


pipeline = Pipeline("words", workers=2)

# The latest value of each key, and the values that are words. Each batch writes only the last value
# of a key.
latest = pipeline.table("words", value=str, store="words_latest")
clean = latest.filter("value RLIKE '^[A-Za-z]{3,}$'").to_stream().to_table(store="words_clean")
clean.to("words_clean", value=str, emit="latest")

alphabet = pipeline.stream("alphabet", value=str)
by_letter = alphabet.group_by_key()
by_letter.count(store="letters_count")
by_letter.reduce(joined, store="letters_joined")
by_letter.aggregate(Letter, with_word, store="letters", returns=Letter)

# The same words, counted by length.
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
