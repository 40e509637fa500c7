"""The glossary's terms are in use, and the docs use no other words for them."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, read

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
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


@pytest.fixture(scope="module")
def text() -> str:
    """Docs other than the glossary, and the package's code, as lower-case words."""
    docs = [read(page) for page in PAGES if page != "docs/glossary.md"]
    code = [path.read_text() for path in sorted((ROOT / "sluice").rglob("*.py"))]
    return re.sub(r"[\s_]+", " ", "\n".join([*docs, *code]).lower())


@pytest.mark.parametrize(("name", "code"), TERMS)
def test_a_term_is_used_outside_the_glossary(name: str, code: str, text: str) -> None:
    assert re.search(rf"\b{name.lower()}", text), name
    assert re.search(rf"\b{code.lower().replace('_', ' ')}\b", text), code


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_the_terms_of_the_glossary(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\s+", " ", re.sub(r"`[^`]*`|\([^)\s]*\)", "", prose))
    former = {word for word in FORMER_WORDS if re.search(rf"\b(?:{word})\b", prose, re.IGNORECASE)}
    assert not former, {word: FORMER_WORDS[word] for word in former}
