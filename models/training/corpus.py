"""The training text as chapters: parsing, and the split into training and held-out chapters."""
import re

VERSE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.*\S)\s*$")
HELD_OUT_EVERY, HELD_OUT_AT = 20, 7


def chapters(path):
    """Text file of fetch_text.sh -> list of chapters, each a list of verses without their numbers."""
    out, last = [], None
    with open(path, encoding="ascii") as fh:
        for number, line in enumerate(fh, 1):
            m = VERSE.match(line)
            if m is None:
                raise SystemExit("%s:%d: not a verse line: %r" % (path, number, line[:60]))
            key = m.group(1), m.group(2)
            if key != last:
                out.append([])
                last = key
            out[-1].append(m.group(4))
    return out


def split(chs):
    """-> (training chapters, held-out chapters); every 20th chapter is held out."""
    held = [c for i, c in enumerate(chs) if i % HELD_OUT_EVERY == HELD_OUT_AT]
    return [c for i, c in enumerate(chs) if i % HELD_OUT_EVERY != HELD_OUT_AT], held
