"""The glossary's terms are in use, and the docs use no other words for them."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, read

PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
TERMS = re.findall(r"^- \*\*(.+?)\*\*(?: \(`(\w+)`\))?", read("docs/glossary.md"), re.MULTILINE)
FORMER_WORDS = {
    r"cuts?": "snapshot",
    r"cells?": "state row, or accumulator",
    r"famil(y|ies)": "aggregation group",
    r"(?<!pool )(?<!`)slots?": "store column",
    r"hand-?offs?": "side outputs",
    r"(?<!dead )(?<!dead-)letters?(?= (of|with|for|by|say|are)\b)": "dead letters",
    r"set aside": "rejected",
    r"feeders?": "ingest",
    r"shipped|shipping": "pickled",
    r"damages": "quarantine",
    r"strangers?": "untrusted peers",
    r"told": "the subject that says it",
    r"at hand|let go of|goes by": "a plain verb",
    r"least and greatest": "min and max",
    r"whoever": "the user or process",
}


def test_terms_are_listed_once() -> None:
    names = [name for name, _ in TERMS]
    assert len(names) > 40
    assert sorted(set(names)) == sorted(names)


def test_terms_are_used_outside_the_glossary() -> None:
    docs = [read(page) for page in PAGES if page != "docs/glossary.md"]
    sources = [path.read_text() for path in sorted((ROOT / "sluice").rglob("*.py"))]
    text = re.sub(r"[\s_]+", " ", "\n".join([*docs, *sources]).lower())
    for name, code in TERMS:
        assert re.search(rf"\b{name.lower()}", text) is not None, name
        assert re.search(rf"\b{code.lower().replace('_', ' ')}\b", text) is not None, code


def test_pages_use_the_terms_of_the_glossary() -> None:
    former = {(page, word): FORMER_WORDS[word] for page in PAGES for word in former_words(page)}
    assert former == {}


def former_words(page: str) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\s+", " ", re.sub(r"`[^`]*`|\([^)\s]*\)", "", prose))
    return {word for word in FORMER_WORDS if re.search(rf"\b(?:{word})\b", prose, re.IGNORECASE)}
