#!/usr/bin/env python3
"""Checks the links of the documents, without network: `scripts/links.py [--book DIRECTORY]`.

In Markdown: a relative link leads to a file, and its anchor to a heading. A page of docs/ links to pages of docs/ only,
because the book contains nothing else. docs/SUMMARY.md names every page. `src/file.rs::name` leads to a function or type
of that name, and a test that a page of docs/proofs/ names is a function of the repository. With --book, the links of the
HTML of the book are checked too.
"""

import html
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(r"`(src/[a-z_/]+\.rs)::(\w+)`")
# Names of tests have three words or more; other names of so many words are metrics.
TEST = re.compile(r"`((?!svc_)[a-z0-9]+(?:_[a-z0-9]+){2,})`")
EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:")


def slugs(text):
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    found = {}
    for title in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        yield slug if count == 0 else f"{slug}-{count}"


def markdown_complaints(pages):
    anchors = {page: set(slugs(page.read_text())) for page in pages}
    for page in pages:
        name = page.relative_to(ROOT)
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            if EXTERNAL.match(target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield f"{name}: {target}: no such file"
            elif DOCS in page.parents and DOCS not in file.parents:
                yield f"{name}: {target}: the book does not contain it; name the path in backticks"
            elif anchor and anchor not in anchors.get(file, set()):
                yield f"{name}: {target}: no such heading"


def source_complaints(pages):
    for page in pages:
        for path, name in SOURCE.findall(page.read_text()):
            file = ROOT / path
            if not file.exists():
                yield f"{page.relative_to(ROOT)}: {path}: no such file"
            elif not re.search(rf"\b(fn|struct|enum|trait|const|type|mod) {name}\b", file.read_text()):
                yield f"{page.relative_to(ROOT)}: {path}::{name}: no such item"


def test_complaints(pages):
    functions = set()
    for file in listed("*.rs"):
        functions.update(re.findall(r"\bfn (\w+)", file.read_text()))
    for page in pages:
        if DOCS / "proofs" in page.parents:
            for name in TEST.findall(page.read_text()):
                if name not in functions:
                    yield f"{page.relative_to(ROOT)}: {name}: no such test"


def summary_complaints(pages):
    summary = DOCS / "SUMMARY.md"
    named = [(DOCS / target).resolve() for target in LINK.findall(summary.read_text())]
    for page in pages:
        if DOCS in page.parents and page != summary and named.count(page) != 1:
            yield f"docs/SUMMARY.md: names {page.relative_to(DOCS)} {named.count(page)} times"


def book_complaints(book):
    files = {file.resolve(): file.read_text() for file in book.rglob("*.html")}
    ids = {file: set(re.findall(r'\sid="([^"]+)"', text)) for file, text in files.items()}
    for file, text in files.items():
        for target in re.findall(r'(?:href|src)="([^"]*)"', text):
            target = html.unescape(target)
            if not target or EXTERNAL.match(target) or file.name in ("print.html", "404.html"):
                continue
            path, _, anchor = target.partition("#")
            other = (file.parent / path).resolve() if path else file
            other = other / "index.html" if other.is_dir() else other
            if not other.exists():
                yield f"{file.name}: {target}: no such file"
            elif anchor and other in ids and anchor not in ids[other]:
                yield f"{file.name}: {target}: no such anchor"


def listed(pattern):
    """Files of the checkout, new ones included, but not ignored ones."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )
    return [ROOT / name for name in names.stdout.split("\n") if name and (ROOT / name).exists()]


def main():
    pages = listed("*.md")
    complaints = [
        *markdown_complaints(pages), *source_complaints(pages), *test_complaints(pages), *summary_complaints(pages),
    ]
    if len(sys.argv) == 3 and sys.argv[1] == "--book":
        complaints += book_complaints(pathlib.Path(sys.argv[2]))
    print(*complaints, sep="\n", end="\n" if complaints else "")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
