"""A treemap as a file of its own: an SVG with its colours in it."""

from html import escape

from kmem.problem.breakdown import Breakdown
from kmem.ui.plots.frame import WIDTH
from kmem.ui.plots.treemap import HEIGHT, Tile, draw_breakdown

#: From what has most to gain to what has least.
_SHADES = ("#9a3412", "#c2410c", "#ea9a3e", "#f4c98a", "#fae8cf")
_DARK = 2  # shades on which text is white
_FOOT = 40


def treemap_svg(whole: Breakdown, name: str) -> str:
    """The parts of a model by the time that eager takes for them, as the text of an SVG file."""
    treemap = draw_breakdown(whole)
    tiles = "\n".join(_tile(tile) for tile in treemap.tiles)
    legend = f"{treemap.summary} ({', '.join(treemap.legend)})."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + _FOOT}" '
        f'font-family="sans-serif" font-size="11.5">\n<title>{escape(name)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT + _FOOT}" fill="#ffffff"/>\n{tiles}\n'
        f'<text x="4" y="{HEIGHT + 16}" fill="#333333">{escape(name)} on {escape(whole.device)}: '
        f"{escape(legend)}</text>\n</svg>\n"
    )


def _tile(tile: Tile) -> str:
    ink = "#ffffff" if tile.shade < _DARK else "#222222"
    lines = [
        f'<text x="{tile.x + 8}" y="{tile.y + height}" fill="{ink}"{style}>{escape(text)}</text>'
        for text, height, style in (
            (tile.label, 18, ' font-weight="600"'),
            (tile.time, 34, ""),
            (tile.place, 50, ' font-family="monospace"'),
        )
        if text
    ]
    return (
        f'<g><title>{escape(tile.text)}</title><rect x="{tile.x}" y="{tile.y}" '
        f'width="{tile.width}" height="{tile.height}" fill="{_SHADES[tile.shade]}" '
        f'stroke="#ffffff" stroke-width="2"/>{"".join(lines)}</g>'
    )
