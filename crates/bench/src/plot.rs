//! Plots as SVG: message size against time or throughput, both logarithmic; and values that fall as time passes.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::data::float::FloatPrettyPrinter;
use plotters::prelude::*;

use crate::stats::size_name;

const SIZE_PIXELS: (u32, u32) = (960, 640);
const FONT: &str = "sans-serif";
const TEXT_PIXELS: u32 = 16;
/// Colours of the lines, in order; readable in print and by most colour-blind people.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(0, 133, 62),
    RGBColor(148, 76, 190),
    RGBColor(204, 121, 0),
    RGBColor(0, 150, 160),
    RGBColor(90, 90, 90),
    RGBColor(190, 40, 120),
];

/// One line of a plot.
#[derive(Debug, Clone)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Size in bytes (or seconds) and measured value; values not above zero cannot be drawn on a logarithmic axis and are left out.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// A line of that name through these points.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points: points.into_iter().collect(),
        }
    }
}

/// Why there is no plot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// There is nothing to draw.
    #[error("no point to plot: sizes and results must be above zero")]
    Empty,
    /// The drawing failed.
    #[error("plot: {0}")]
    Drawing(String),
}

/// Ticks are sums: their last digits are none.
const SECONDS: FloatPrettyPrinter = FloatPrettyPrinter {
    allow_scientific: false,
    min_decimal: 1,
    max_decimal: 5,
};

/// What is 0, or rounding alone, has a place over time, too.
const LEAST: f64 = 1e-18;

/// The name of an axis, and how its values are written.
type Axis<'a> = (&'a str, &'a dyn Fn(&f64) -> String);

/// A plot whose heights are logarithmic.
struct Plot<'a> {
    title: &'a str,
    x: Axis<'a>,
    y: Axis<'a>,
    lines: &'a [Line],
    /// Whether the axes have a place for a point.
    drawable: fn(&(f64, f64)) -> bool,
    legend: SeriesLabelPosition,
}

/// Draws lines over seconds. `unit` is that of the heights, which are logarithmic; 0 is drawn at the bottom.
pub fn over_time(title: &str, unit: &str, lines: &[Line]) -> Result<String, PlotError> {
    let raised = |line: &Line| Line {
        name: line.name.clone(),
        points: (line.points.iter())
            .map(|&(x, y)| (x, if (0.0..LEAST).contains(&y) { LEAST } else { y }))
            .collect(),
    };
    let lines: Vec<Line> = lines.iter().map(raised).collect();
    let plot = Plot {
        title,
        x: ("seconds", &|second| SECONDS.print(*second)),
        y: (unit, &|value| format!("{value:e}")),
        lines: &lines,
        drawable: |&(x, y)| x >= 0.0 && y > 0.0 && x.is_finite() && y.is_finite(),
        legend: SeriesLabelPosition::UpperRight, // free: what is drawn falls
    };
    let (_, last) = plot.ends(|point| point.0)?;
    // A single moment needs room beside it, too.
    plot.svg(0.0..last.max(f64::MIN_POSITIVE) * 1.05)
}

/// Draws lines over message sizes. `unit` is that of the heights.
pub fn svg(title: &str, unit: &str, lines: &[Line]) -> Result<String, PlotError> {
    let size = |size: &f64| size_name(size.round() as usize);
    over(title, ("message size", &size), unit, lines)
}

/// Draws lines over what is counted, named `counted`: elements, workers, rows. Both axes are logarithmic.
pub fn over_counts(
    title: &str,
    counted: &str,
    unit: &str,
    lines: &[Line],
) -> Result<String, PlotError> {
    let count = |count: &f64| count.round().to_string();
    over(title, (counted, &count), unit, lines)
}

fn over(title: &str, x: Axis<'_>, unit: &str, lines: &[Line]) -> Result<String, PlotError> {
    let plot = Plot {
        title,
        x,
        y: (unit, &|value| value.to_string()), // powers of ten, without needless zeros
        lines,
        drawable: |&(x, y)| x > 0.0 && y > 0.0 && x.is_finite() && y.is_finite(),
        legend: SeriesLabelPosition::LowerRight, // free: time and throughput both grow with size
    };
    let (least, most) = plot.ends(|point| point.0)?;
    // A single point needs room around it, too.
    plot.svg((least / 1.2..most * 1.2).log_scale().base(2.0))
}

impl Plot<'_> {
    /// Least and largest value of the points that are drawn.
    fn ends(&self, pick: fn((f64, f64)) -> f64) -> Result<(f64, f64), PlotError> {
        let points = self.lines.iter().flat_map(|line| &line.points).copied();
        let values = points.filter(self.drawable).map(pick);
        let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
            let (least, most) = ends.unwrap_or((value, value));
            Some((least.min(value), most.max(value)))
        });
        ends.ok_or(PlotError::Empty)
    }

    /// The drawing, with this horizontal axis.
    fn svg<X: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        x: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    ) -> Result<String, PlotError> {
        let ends = self.ends(|point| point.1)?;
        let mut text = String::new();
        self.draw(&mut text, x, ends)
            .map_err(|error| PlotError::Drawing(error.to_string()))?;
        Ok(text)
    }

    fn draw<X: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        text: &mut String,
        x: impl AsRangedCoord<CoordDescType = X, Value = f64>,
        (least, most): (f64, f64),
    ) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(text, SIZE_PIXELS).into_drawing_area();
        area.fill(&WHITE)?;
        let y = 10_f64.powf(least.log10().floor())..most * 2.0;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, (FONT, 22))
            .margin(14)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(x, y.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.x.0)
            .y_desc(self.y.0)
            .x_label_formatter(self.x.1)
            .y_label_formatter(self.y.1)
            .light_line_style(RGBColor(235, 235, 235))
            .label_style((FONT, TEXT_PIXELS))
            .axis_desc_style((FONT, TEXT_PIXELS + 2))
            .draw()?;
        for (line, color) in self.lines.iter().zip(COLORS.iter().cycle()) {
            let points = line.points.iter().copied().filter(self.drawable);
            let points: Vec<_> = points.collect();
            let style = color.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
            let dots = points
                .iter()
                .map(|&point| Circle::new(point, 3, color.filled()));
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(self.legend.clone())
            .label_font((FONT, TEXT_PIXELS))
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(f64, f64)]) -> Line {
        Line {
            name: "MPICH <4> & more".to_owned(),
            points: points.to_vec(),
        }
    }

    /// Values that cannot be drawn on logarithmic axes are left out; if none is left, that is an error.
    #[test]
    fn leaves_out_what_has_no_logarithm() {
        let drawn = svg(
            "t",
            "us",
            &[line(&[(0.0, 1.0), (8.0, 2.0), (16.0, f64::NAN)])],
        )
        .unwrap();
        assert_eq!(drawn.matches("<circle").count(), 1);
        for points in [&[][..], &[(0.0, 1.0)], &[(8.0, 0.0)]] {
            assert!(matches!(
                svg("t", "us", &[line(points)]),
                Err(PlotError::Empty)
            ));
        }
    }

    /// Values over time are drawn from their first moment on, those of 0 at the bottom; without any there is no plot.
    #[test]
    fn time_begins_at_zero() {
        let drawn =
            over_time("t", "norm", &[line(&[(0.0, 1.0), (0.5, 1e-9), (1.0, 0.0)])]).unwrap();
        assert_eq!(drawn.matches("<circle").count(), 3);
        assert!(over_time("t", "norm", &[line(&[(0.0, 0.0)])]).is_ok());
        let empty = over_time("t", "norm", &[line(&[(1.0, f64::NAN)])]);
        assert!(matches!(empty, Err(PlotError::Empty)));
    }

    /// Names with characters that are special in XML do not break the file.
    #[test]
    fn names_are_escaped() {
        let drawn = svg("a < b", "us", &[line(&[(4.0, 1.0), (1024.0, 30.0)])]).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
        assert!(
            !drawn.contains("<4>") && !drawn.contains("a < b"),
            "{drawn}"
        );
        assert!(drawn.contains("KiB") || drawn.contains("B\n"), "{drawn}");
    }
}
