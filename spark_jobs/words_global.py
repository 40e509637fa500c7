"""Words joined with global tables: with the description of their letter, and with the word of their key."""

from sluice import Pipeline

pipeline = Pipeline("words_global", workers=2)
words = pipeline.global_table("words", value=str)
descriptions = pipeline.global_table("alphabet_descriptions", value=str)
alphabet = pipeline.stream("alphabet", value=str)

# The key to look up is an SQL expression, here the word's first letter, and not the record's key.
alphabet.join(descriptions, on="upper(substring(value, 1, 1))").to("words_with_global_description_inner")
alphabet.left_join(descriptions, on="upper(substring(value, 1, 1))").to("words_with_global_description_left")

alphabet.join(words).filter("right RLIKE '^[A-Za-z]{3,}$'").to("alphabet_with_words")
