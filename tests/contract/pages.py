"""Elements of an HTML page."""

import html.parser

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


class Page(html.parser.HTMLParser):
    """Elements that are open, and all that were seen."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()
