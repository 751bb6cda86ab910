"""HTML taken apart."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "source", "input"}


class Page(HTMLParser):
    """Elements and text of a page, whose tags must be closed in their order."""

    def __init__(self, content):
        super().__init__()
        self.tags = []
        self.open_tags = []
        self.words = []
        self.feed(content)
        self.close()
        assert self.open_tags == [], "tags that are not closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        if self.open_tags[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def elements(self, tag):
        """Attributes of each element with this tag."""
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, attribute):
        """What an attribute is, in each element that has it."""
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]
