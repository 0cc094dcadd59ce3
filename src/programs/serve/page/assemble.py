#!/usr/bin/env python3
"""assemble.py OUT LIBRARY - makes the page at `/` one file: page.html with the style, the scripts and markdown-it.

LIBRARY: the folder of Debian's node-markdown-it, whose modules are bundled here, or a browser's build of markdown-it
(one file). Where there is none, the page is made without it; it then shows answers as plain text and says so."""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LICENSE = os.path.join(HERE, "..", "..", "..", "..", "doc", "licenses", "markdown-it.txt")
SCRIPTS = ("dom", "highlight", "markdown", "store", "tree", "settings", "server", "composer", "transfer", "view",
           "list", "answer", "main")
# Node's own module, of which the library needs two functions for host names; names that are not ASCII stay as they are.
BUILT_IN = {"punycode": "module.exports = { toASCII: s => s, toUnicode: s => s };"}


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def without_comments(code):
    """Without the comments that begin a line, and without empty lines."""
    code = re.sub(r"^[ \t]*/\*.*?\*/[ \t]*$", "", code, flags=re.M | re.S)
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"^[ \t]*//.*$", "", code, flags=re.M)).strip() + "\n"


def found(name, folder, root):
    """The file of a CommonJS module, as Node looks it up: a path from its folder, or the name of a package."""
    at = os.path.join(folder if name.startswith(".") else os.path.join(root, "node_modules"), name)
    for path in (at, at + ".js", os.path.join(at, "index.js")):
        if os.path.isfile(path):
            return os.path.normpath(path)
    raise SystemExit("assemble.py: %s: module '%s' is not there" % (folder, name))


def bundled(root):
    """The modules that lib/index.js needs, in one script that defines `markdownit`."""
    modules, waiting = {}, [found("./lib/index.js", root, root)]
    while waiting:
        path = waiting.pop()
        if path in modules:
            continue
        code = BUILT_IN.get(path)
        if code is None:
            code = text_of(path)
            code = "module.exports = %s;" % code if path.endswith(".json") else without_comments(code)

            def named(m, folder=os.path.dirname(path)):
                target = m.group(2) if m.group(2) in BUILT_IN else found(m.group(2), folder, root)
                waiting.append(target)
                return 'require("%s")' % (target if target in BUILT_IN else os.path.relpath(target, root))

            code = re.sub(r"""require\((['"])(.+?)\1\)""", named, code)
        modules[path] = '"%s"(module, exports, require) {\n%s}' % (
            path if path in BUILT_IN else os.path.relpath(path, root), code)
    return ("const markdownit = (() => {\nconst code = {\n%s\n}, ready = {};\nfunction load(name) {\n"
            "if (!ready[name]) { ready[name] = { exports: {} }; code[name](ready[name], ready[name].exports, load); }\n"
            "return ready[name].exports;\n}\nreturn load(\"lib/index.js\");\n})();\n" % ",\n".join(modules.values()))


def library(path):
    if not path or not os.path.exists(path):
        sys.stderr.write("  the page shows plain text: there is no markdown-it at '%s' (Debian: node-markdown-it; "
                         "elsewhere: MARKDOWN_IT=.../markdown-it.min.js)\n" % path)
        return "const markdownit = null;\n"
    code = bundled(path) if os.path.isdir(path) else text_of(path)
    return "/*\n%s*/\n%s" % (text_of(LICENSE), code)


def page(library_path):
    parts = {"STYLE": without_comments(text_of(os.path.join(HERE, "page.css"))), "LIBRARY": library(library_path),
             "SCRIPT": "\n".join(without_comments(text_of(os.path.join(HERE, n + ".js"))) for n in SCRIPTS)}
    for name, part in parts.items():
        if re.search(r"</?(?:script|style)|@NONCE@", part, re.I):
            raise SystemExit("assemble.py: %s has a text that would end it inside the page" % name.lower())
    html = text_of(os.path.join(HERE, "page.html"))
    for name, part in parts.items():
        html = html.replace("@%s@\n" % name, part)
    return html


if __name__ == "__main__":
    made = page(sys.argv[2])
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(made)
