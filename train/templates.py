"""templates.py - small Python classes from a generator of ours: text of low entropy in the form of code.

A few million tokens are far too few to learn Python, but enough to learn one habit: once a class has named its fields, its
methods follow in order from the fields' kinds. So the text is predictable where real code is predictable (boilerplate), and
its names still have to be looked up in what was written before.
"""

OWNERS = ("Shelf Garden Kitchen Library Office School Museum Station Market Harbor Farm Theater Hospital Workshop "
          "Bakery Factory Airport Bridge "
          "Castle Village Archive Album Basket Wallet Cabinet Drawer Engine Vehicle Machine Printer Router Server "
          "Session Parser Reader Writer "
          "Player Ticket Invoice Account Report Project Team Club Course Lesson Recipe Journal Calendar Planner "
          "Tracker Monitor Scanner").split()
ITEMS = ("book plant spoon paper chair pupil picture train apple ship cow actor doctor tool cake part plane stone "
         "guest letter photo coin card file "
         "page wheel job packet client message token line word song seat price order task member player topic step "
         "note event plan sample signal").split()
NUMBERS = "weight height width length size score level speed balance capacity limit volume distance age rank priority".split()
TEXTS = "name title owner color label status category address language country comment author".split()
FLAGS = "open active locked visible ready empty public broken clean enabled".split()
MAPS = "price stock index owner color grade rating address".split()


def fields(rng):
    """[(kind, name, extra)] with every kind at most once, so that no method is a copy of its neighbour."""
    kinds = rng.sample(["text", "number", "list", "flag", "map", "history"], rng.randint(3, 5))
    item, out = rng.choice(ITEMS), []
    for k in kinds:
        if k == "text":
            out.append((k, rng.choice(TEXTS), None))
        elif k == "number":
            out.append((k, rng.choice(NUMBERS), None))
        elif k == "flag":
            out.append((k, rng.choice(FLAGS), None))
        elif k == "list":
            out.append((k, item + "s", item))
        elif k == "map":
            out.append((k, rng.choice(MAPS) + "_of", rng.choice(ITEMS)))
        else:
            out.append((k, "history", None))
    return out


def listing(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


METHODS = {
    "text": '''    def change_{f}(self, {f}):
        """Give the {o} another {f} and return the old one."""
        old = self.{f}
        self.{f} = {f}.strip()
        return old
''',
    "number": '''    def add_{f}(self, amount):
        """Raise the {f} of the {o} by an amount."""
        if amount < 0:
            raise ValueError("amount must not be negative")
        self.{f} += amount
        return self.{f}

    def is_over(self, limit):
        """Tell whether the {f} is greater than a limit."""
        return self.{f} > limit
''',
    "list": '''    def add_{e}(self, {e}):
        """Put one more {e} into the {o}."""
        if {e} in self.{f}:
            return False
        self.{f}.append({e})
        return True

    def remove_{e}(self, {e}):
        """Take a {e} out of the {o} again."""
        try:
            self.{f}.remove({e})
        except ValueError:
            raise KeyError(f"no such {e}: {{{e}}}") from None

    def count_{f}(self):
        """Return how many {f} there are."""
        return len(self.{f})

    def sorted_{f}(self, reverse=False):
        """Return all {f} in order."""
        return sorted(self.{f}, reverse=reverse)
''',
    "flag": '''    def set_{f}(self, value=True):
        """Make the {o} {f} or not."""
        self.{f} = bool(value)

    def check_{f}(self):
        """Raise an error unless the {o} is {f}."""
        if not self.{f}:
            raise RuntimeError("the {o} is not {f}")
''',
    "map": '''    def find(self, {e}, default=None):
        """Look up a {e} and return what is known about it."""
        return self.{f}.get({e}, default)

    def update(self, {e}, value):
        """Store a value for a {e}."""
        if value is None:
            del self.{f}[{e}]
        else:
            self.{f}[{e}] = value

    def items(self):
        """Iterate over every {e} with its value."""
        for {e}, value in self.{f}.items():
            yield {e}, value
''',
    "history": '''    def log(self, message, *args):
        """Append a line to the history."""
        text = message % args if args else message
        self.history.append((time.time(), text))

    def last(self, n=10):
        """Return the last lines of the history, newest first."""
        lines = [text for _, text in self.history[-n:]]
        lines.reverse()
        return lines
'''}

START = {"text": "{f}", "number": "{f}", "list": "[]", "flag": "False", "map": "{{}}", "history": "[]"}


def source(rng):
    """-> (head, rest): a class up to the end of its __init__, and what follows from it."""
    cls = rng.choice(OWNERS)
    o, fs = cls.lower(), fields(rng)
    words = [f.replace("_of", "") if k == "map" else f for k, f, _ in fs]
    given = [f for k, f, _ in fs if k in ("text", "number")]
    args = "".join(f", {f}" for f in given)
    head = (f'class {cls}:\n    """A {o} with {listing(words)}."""\n\n    def __init__(self{args}):\n'
            + "".join(f"        self.{f} = {START[k].format(f=f)}\n" for k, f, _ in fs) + "\n")
    show = ", ".join(f"{f}={{self.{f}!r}}" for f in [x for x in (given or [fs[0][1]])])
    rest = [f'    def __repr__(self):\n        return f"{cls}({show})"\n']
    rest += [METHODS[k].format(f=f, o=o, e=e) for k, f, e in fs]
    first = fs[0][1]
    call = ", ".join(f'"{f}"' if k == "text" else "10" for k, f, _ in fs if k in ("text", "number"))
    tail = f"\n\ndef test_{o}():\n    {o} = {cls}({call})\n    print({o}.{first})\n"
    for k, f, e in fs:
        if k == "list":
            tail += f'    assert {o}.add_{e}("{e}")\n    assert {o}.count_{f}() == 1\n'
        if k == "number":
            tail += f"    assert {o}.add_{f}(5) == 15\n"
        if k == "flag":
            tail += f"    {o}.set_{f}()\n    assert {o}.{f}\n"
    return head, "\n".join(rest) + tail
