//! Plots as SVG: message size against time or throughput, both logarithmic; and values that fall as time passes.

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

/// Draws lines over seconds. `unit` is that of the heights, which are logarithmic.
pub fn over_time(title: &str, unit: &str, lines: &[Line]) -> Result<String, PlotError> {
    let drawable = |&(x, y): &(f64, f64)| x >= 0.0 && y > 0.0 && x.is_finite() && y.is_finite();
    let points = lines.iter().flat_map(|line| &line.points);
    let points: Vec<(f64, f64)> = points.copied().filter(drawable).collect();
    if points.is_empty() {
        return Err(PlotError::Empty);
    }
    let last = points.iter().fold(0.0_f64, |last, point| last.max(point.0));
    let least = points
        .iter()
        .fold(f64::MAX, |least, point| least.min(point.1));
    let most = points.iter().fold(0.0_f64, |most, point| most.max(point.1));
    let mut text = String::new();
    draw_over_time(&mut text, title, unit, lines, (last, least, most), drawable)
        .map_err(|error| PlotError::Drawing(error.to_string()))?;
    Ok(text)
}

fn draw_over_time(
    text: &mut String,
    title: &str,
    unit: &str,
    lines: &[Line],
    (last, least, most): (f64, f64, f64),
    drawable: impl Fn(&(f64, f64)) -> bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE_PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    // A single moment needs room beside it, too.
    let x = 0.0..last.max(f64::MIN_POSITIVE) * 1.05;
    let y = 10_f64.powf(least.log10().floor())..most * 2.0;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 22))
        .margin(14)
        .x_label_area_size(56)
        .y_label_area_size(84)
        .build_cartesian_2d(x, y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc(unit)
        .y_label_formatter(&|value| format!("{value:e}"))
        .light_line_style(RGBColor(235, 235, 235))
        .label_style((FONT, TEXT_PIXELS))
        .axis_desc_style((FONT, TEXT_PIXELS + 2))
        .draw()?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        let points: Vec<_> = line.points.iter().copied().filter(&drawable).collect();
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
        .position(SeriesLabelPosition::UpperRight) // free: what is drawn falls
        .label_font((FONT, TEXT_PIXELS))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present()?;
    Ok(())
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
    over(
        title,
        (counted, &|count| format!("{}", count.round())),
        unit,
        lines,
    )
}

/// The name of the horizontal axis, and how its values are written.
type Axis<'a> = (&'a str, &'a dyn Fn(&f64) -> String);

fn over(title: &str, axis: Axis<'_>, unit: &str, lines: &[Line]) -> Result<String, PlotError> {
    let drawable = |&(x, y): &(f64, f64)| x > 0.0 && y > 0.0 && x.is_finite() && y.is_finite();
    let points = || lines.iter().flat_map(|line| &line.points).copied();
    let ends = |pick: fn((f64, f64)) -> f64| {
        let values = points().filter(|point| drawable(point)).map(pick);
        values.fold(None, |ends: Option<(f64, f64)>, value| {
            let (least, most) = ends.unwrap_or((value, value));
            Some((least.min(value), most.max(value)))
        })
    };
    let (Some(x), Some(y)) = (ends(|point| point.0), ends(|point| point.1)) else {
        return Err(PlotError::Empty);
    };
    let mut text = String::new();
    draw(&mut text, title, axis, unit, lines, (x, y), drawable)
        .map_err(|error| PlotError::Drawing(error.to_string()))?;
    Ok(text)
}

fn draw(
    text: &mut String,
    title: &str,
    axis: Axis<'_>,
    unit: &str,
    lines: &[Line],
    ((x_least, x_most), (y_least, y_most)): ((f64, f64), (f64, f64)),
    drawable: impl Fn(&(f64, f64)) -> bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE_PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    // A single point needs room around it, too.
    let (x, y) = (
        x_least / 1.2..x_most * 1.2,
        10_f64.powf(y_least.log10().floor())..y_most * 2.0,
    );
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 22))
        .margin(14)
        .x_label_area_size(56)
        .y_label_area_size(84)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(axis.0)
        .y_desc(unit)
        .x_label_formatter(axis.1)
        .y_label_formatter(&|value| value.to_string()) // powers of ten, without needless zeros
        .light_line_style(RGBColor(235, 235, 235))
        .label_style((FONT, TEXT_PIXELS))
        .axis_desc_style((FONT, TEXT_PIXELS + 2))
        .draw()?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        let points: Vec<_> = line.points.iter().copied().filter(&drawable).collect();
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
        .position(SeriesLabelPosition::LowerRight) // free: time and throughput both grow with size
        .label_font((FONT, TEXT_PIXELS))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present()?;
    Ok(())
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

    /// Values over time are drawn from their first moment on; without any there is no plot.
    #[test]
    fn time_begins_at_zero() {
        let drawn =
            over_time("t", "norm", &[line(&[(0.0, 1.0), (0.5, 1e-9), (1.0, 0.0)])]).unwrap();
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(over_time("t", "norm", &[line(&[(0.0, 3.0)])]).is_ok());
        let empty = over_time("t", "norm", &[line(&[(1.0, 0.0)])]);
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
