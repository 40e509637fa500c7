"""Words with global tables: every word beside the description of its letter, and beside the word of that key."""

from sluice import Pipeline

pipeline = Pipeline("words_global", workers=2)
words = pipeline.global_table("words", value=str)
descriptions = pipeline.global_table("alphabet_descriptions", value=str)
alphabet = pipeline.stream("alphabet", value=str)

# The key to look up is an expression: the word's own first letter, whatever the record's key is.
alphabet.join(descriptions, on="upper(substring(value, 1, 1))").to("words_with_global_description_inner")
alphabet.left_join(descriptions, on="upper(substring(value, 1, 1))").to("words_with_global_description_left")

alphabet.join(words).filter("right RLIKE '^[A-Za-z]{3,}$'").to("alphabet_with_words")
