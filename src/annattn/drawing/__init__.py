"""Charts as SVG text, in the report's style: lines with their names at their ends, labelled points, and heat maps."""

from annattn.drawing.chart import Axis, Line, chart
from annattn.drawing.files import dark_name, write_figure
from annattn.drawing.heat import heat
from annattn.drawing.scatter import Point, scatter
from annattn.drawing.style import Theme

__all__ = ["Axis", "Line", "Point", "Theme", "chart", "dark_name", "heat", "scatter", "write_figure"]
