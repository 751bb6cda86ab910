"""Every word of a public name has one meaning, which stands in `glossary.toml`.

`python tests/test_glossary.py` adds words that are new, without a meaning, and removes those that
are gone.
"""

import inspect
import json
import re
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
SURFACE, GLOSSARY = FOLDER / "api_surface.json", FOLDER / "glossary.toml"
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
FLAGS = ("args", "kwargs", "cls", "self")


def public_words():
    """Words of public names and of their parameters, in lower case, and where each stands."""
    places = defaultdict(set)
    for module_name, names in json.loads(SURFACE.read_text(encoding="utf-8")).items():
        module = import_module(module_name)
        for name in names:
            place = f"{module_name}.{name}"
            for part in (name, *_parameters(getattr(module, name))):
                for word in WORD.findall(part):
                    places[word.lower()].add(place)
    return dict(places)


def _parameters(value):
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return []
    try:
        return [name for name in inspect.signature(value).parameters if name not in FLAGS]
    except (ValueError, TypeError):  # of classes in C
        return []


def glossary():
    """Meanings of words, and words that have none of their own, such as `of`."""
    content = tomllib.loads(GLOSSARY.read_text(encoding="utf-8"))
    return content["words"], set(content["grammar"]["words"])


def entry(word, meanings):
    """The entry of a word: its own, or that of its singular."""
    singular = word[:-3] + "y" if word.endswith("ies") else word.removesuffix("s")
    candidates = (word, singular, word.removesuffix("es"))
    if word.endswith(("ss", "us", "is", "as")) or word.endswith("es"):
        singular = word  # a new word of this form is rarely a plural in -s
    return next((one for one in candidates if one in meanings), singular)


def renewed():
    """The glossary with the words of today."""
    meanings, grammar = glossary()
    entries = {entry(word, meanings) for word in public_words() if word not in grammar}
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines(keepends=True)
    start = lines.index("[words]\n") + 1
    end = lines.index("[grammar]\n")
    table = [f"{word} = {json.dumps(meanings.get(word, ''))}\n" for word in sorted(entries)]
    return "".join([*lines[:start], *table, "\n", *lines[end:]])


def test_every_word_has_one_meaning():
    meanings, grammar = glossary()
    missing = {
        word: sorted(places)[:3]
        for word, places in public_words().items()
        if word not in grammar and not meanings.get(entry(word, meanings))
    }
    assert not missing, "give them a meaning in tests/glossary.toml, or take a word that is there"


def test_every_meaning_has_one_word():
    meanings, _ = glossary()
    words = defaultdict(list)
    for word, meaning in meanings.items():
        words[meaning].append(word)
    assert not {meaning: group for meaning, group in words.items() if len(group) > 1}


def test_words_that_are_gone_are_removed():
    assert renewed() == GLOSSARY.read_text(encoding="utf-8")


if __name__ == "__main__":
    GLOSSARY.write_text(renewed(), encoding="utf-8")
