#!/usr/bin/env python3
"""Draws the last screen of a terminal session as SVG: docs/stats.svg is made with it.

    script -q -c 'stty cols 100 rows 30; sshoal stats MOUNTPOINT' LOG     (under load; q ends it)
    scripts/terminal-svg.py 100 30 LOG > docs/stats.svg

Knows what the view of `sshoal stats` writes: positions, colors, bold, and text of one column a
character. The screen is the one before the program leaves the alternate screen.
"""
import html
import re
import sys

columns, rows, log = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
text = open(log, encoding="utf-8", errors="replace").read()
text = text.split("\x1b[?1049h")[-1].split("\x1b[?1049l")[0]

COLORS = dict(zip(range(8), "#15191e #e5484d #46a758 #f5c542 #3e8ed0 #b07ad6 #35b5c1 #d8dee6".split()))
COLORS[8] = "#7c8793"
FOREGROUND, BACKGROUND = "#d8dee6", "#15191e"

screen = [[(" ", FOREGROUND, False)] * columns for _ in range(rows)]
row = column = 0
color, bold = FOREGROUND, False


def select(parameters):
    """SGR: the parameters that crossterm writes."""
    global color, bold
    numbers = [int(number or 0) for number in parameters.split(";")]
    while numbers:
        first = numbers.pop(0)
        if first == 38 and numbers[:1] == [5]:
            color = COLORS.get(numbers[1], FOREGROUND)
            numbers = numbers[2:]
        elif first == 48 and numbers[:1] == [5]:
            numbers = numbers[2:]
        elif first in (0, 39):
            color, bold = FOREGROUND, bold and first == 39
        elif first in (1, 22):
            bold = first == 1
        elif 30 <= first <= 37:
            color = COLORS[first - 30]


for match in re.finditer(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b.|[\r\n]|([^\x1b\r\n])", text):
    parameters, command, char = match.groups()
    if char is not None:
        if row < rows and column < columns:
            screen[row][column] = (char, color, bold)
        column += 1
    elif command == "H":
        row, column = (int(number or 1) - 1 for number in (parameters or "1;1").split(";"))
    elif command == "m":
        select(parameters)
    elif command == "J":
        screen = [[(" ", FOREGROUND, False)] * columns for _ in range(rows)]

WIDTH, HEIGHT = 8.4, 17
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH + 20:.0f} '
      f'{rows * HEIGHT + 20}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">')
print(f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>')
for y, line in enumerate(screen):
    x = 0
    while x < columns:
        end = x
        while end < columns and line[end][1:] == line[x][1:]:
            end += 1
        part = "".join(cell[0] for cell in line[x:end])
        if part.strip():
            weight = ' font-weight="bold"' if line[x][2] else ""
            print(f'<text x="{10 + x * WIDTH:.1f}" y="{10 + y * HEIGHT + 13}" fill="{line[x][1]}"'
                  f'{weight} textLength="{len(part) * WIDTH:.1f}" xml:space="preserve">'
                  f"{html.escape(part)}</text>")
        x = end
print("</svg>")
