# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Lines over rows as SVG, for light and dark pages."""

from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT, ROWS = 640, 360, 56, 44, 20, 130, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series; a single point is drawn as a dot."""

    name: str
    colour: str
    points: list[tuple[float, float]]
    """rows and value, rising"""
    is_dashed: bool = False


def lines(title: str, series: list[Line], step: int) -> str:
    """Values from 0, a grid line every `step` of them, 1 to 16 rows."""
    most = max(value for line in series for _, value in line.points)
    across = (WIDTH - LEFT - RIGHT) / (ROWS - 1)

    def place(rows: float, value: float) -> str:
        x = LEFT + (rows - 1) * across
        return f"{x:.1f},{HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - TOP):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<style>text{fill:#333}.a{stroke:#999}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>",
        f'<text x="{LEFT}" y="14">{title}</text>',
    ]
    for value in range(0, int(most) + 1, step):
        x, y = place(1, value).split(",")
        parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{value}</text>')
        end = place(ROWS, value).split(",")[0]
        parts.append(f'<line class="a" x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke-width=".4"/>')
    for rows in sorted({rows for line in series for rows, _ in line.points}):
        x = place(rows, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 22}" text-anchor="middle">{rows:g}</text>')
    for line in series:
        x, y = place(*line.points[-1]).split(",")
        if len(line.points) == 1:
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{line.colour}"/>')
        else:
            dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
            points = " ".join(place(*point) for point in line.points)
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{line.colour}" '
                f'stroke-width="2"{dashes}/>'
            )
        parts.append(
            f'<text x="{float(x) + 6:.1f}" y="{y}" style="fill:{line.colour}">{line.name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
