"""Words joined with global tables: the descriptions of their letters, and the words with the same key."""

from sluice import Pipeline

pipeline = Pipeline("words_global", workers=2)
words = pipeline.global_table("words", value=str)
descriptions = pipeline.global_table("alphabet_descriptions", value=str)
alphabet = pipeline.stream("alphabet", value=str)

# `on` is an SQL expression for the key to look up: the word's first letter instead of the record's
# key.
alphabet.join(descriptions, on="upper(substring(value, 1, 1))").to(
    "words_with_global_description_inner"
)
alphabet.left_join(descriptions, on="upper(substring(value, 1, 1))").to(
    "words_with_global_description_left"
)

alphabet.join(words).filter("right RLIKE '^[A-Za-z]{3,}$'").to("alphabet_with_words")
