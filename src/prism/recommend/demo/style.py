"""How each system is drawn, by its place: a colour, dashes and a marker."""

# Okabe and Ito's colours, which colour-blind readers tell apart; lighter ones on a dark page.
LIGHT = ("#0072b2", "#d55e00", "#00875f", "#7a7f87", "#b8568f", "#b87a00")
DARK = ("#5bb8f0", "#ff8f4d", "#35cfa3", "#9aa1ab", "#e79ac6", "#f0b93a")
SYSTEM_COLOURS = len(LIGHT)
# matplotlib's names, or (offset, (on, off, …)).
DASHES = (
    "-",
    "-",
    "-",
    (0, (1, 1.5)),
    (0, (3.2, 1.4)),
    (0, (4, 1.4, 1, 1.4)),
    (0, (2, 1)),
    (0, (5.5, 1.4)),
    (0, (0.5, 1)),
    (0, (2.7, 1, 0.5, 1)),
)
# (matplotlib's marker, its size)
MARKERS = (("o", 8), ("s", 7.2), ("D", 7), ("^", 8.6), ("v", 8.6), ("P", 9), ("X", 8.6))


def dashes(style: int) -> str | tuple[int, tuple[float, ...]]:
    """Of a system's line: of those that share a colour no two have the same, up to 21 systems."""
    return DASHES[style if style < len(DASHES) else 3 + style % 7]
