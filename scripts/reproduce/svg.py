"""What pictures in docs share. They follow the reader's choice of light or dark."""

import pathlib


def style(colours: dict) -> str:
    """`colours`: by name, on white and on dark. Shapes use them as var(--name)."""
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in colours.items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in colours.items())
    return f"""<style>
svg {{ color-scheme: light dark; font: 12px system-ui, sans-serif;
  --paper: #fff; --ink: #1c1e21; --faint: #d9dce0; --grey: #6b7280;
  {light} }}
@media (prefers-color-scheme: dark) {{ svg {{
  --paper: #15181c; --ink: #e8eaed; --faint: #363b42; --grey: #9aa3ad;
  {dark} }} }}
text {{ fill: var(--ink); }} .head {{ font-size: 15px; font-weight: 600; }}
.axis {{ fill: var(--grey); }} .grid {{ stroke: var(--faint); }}
.line {{ fill: none; stroke-width: 2.2; }}
</style>"""


def spread(wanted: list, gap: float) -> list:
    """Heights for labels: as wanted, but at least `gap` apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for before, after in zip(order, order[1:]):
        placed[after] = max(placed[after], placed[before] + gap)
    return placed


def write(file: pathlib.Path, lines: list) -> None:
    whole = file.with_suffix(".tmp")
    whole.write_text("\n".join([*lines, "</svg>"]) + "\n", encoding="utf-8")
    whole.replace(file)
